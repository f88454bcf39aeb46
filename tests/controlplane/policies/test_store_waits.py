"""How long calls wait for Redis: from an edit, a file, the API or a form to pods."""

from typing import Any

import pytest

from controlplane.editing import edits
from controlplane.editing.plans import difference, export_plan, read_plan
from controlplane.errors import InvalidEdit
from controlplane.policies.models import Dependency
from controlplane.policies.newer_settings import newer_settings
from tests.controlplane.calling import problem
from tests.controlplane.published import published_policy

API = "/api/v1/production"
WHY = {"reason": "Calls take seconds"}
EDIT: dict[str, Any] = {"environment": "production", **WHY}


def wait_of(name: str) -> int:
    """What the document of pods says, as an agent reads it."""
    policy = published_policy()
    return next(each for each in policy.dependencies if each.name == name).store_wait_ms


@pytest.mark.parametrize(("kind", "expected"), [("llm", 250), ("external", 0)])
def test_the_kind_of_a_new_dependency_sets_it(
    production: str, ada: Any, call: Any, kind: str, expected: int
) -> None:
    edits.create_dependency(dependency="by-edit", kind=kind, actor=ada, **EDIT)
    call("admin", "POST", f"{API}/dependencies", {"name": "by-api", "kind": kind, **WHY})
    revision = call("admin", "GET", f"{API}/configuration").json()["revision"]
    address = f"{API}/apply?expected_revision={revision}&reason=for+a+test"
    assert call("admin", "POST", address, f"dependencies: {{by-file: {{kind: {kind}}}}}").status_code == 200
    assert [wait_of(name) for name in ("by-edit", "by-api", "by-file")] == [expected] * 3


def test_a_value_that_is_given_replaces_that_of_the_kind(production: str, call: Any) -> None:
    body = {"name": "quick", "kind": "llm", "store_wait_ms": 40, **WHY}
    assert call("admin", "POST", f"{API}/dependencies", body).status_code == 201
    assert wait_of("quick") == 40
    changed = {"store_wait_ms": 0, "expected_version": 1, **WHY}
    assert call("admin", "PATCH", f"{API}/dependencies/quick/breaker", changed).status_code == 200
    assert wait_of("quick") == 0
    assert call("admin", "GET", f"{API}/dependencies/quick").json()["store_wait_ms"] == 0


@pytest.mark.parametrize("value", [-1, 501])
def test_a_value_out_of_range_names_its_field(production: str, ada: Any, call: Any, value: int) -> None:
    with pytest.raises(InvalidEdit) as error:
        edits.create_dependency(dependency="new", kind="llm", store_wait_ms=value, actor=ada, **EDIT)
    assert list(error.value.errors) == ["store_wait_ms"]
    body = {"name": "new", "kind": "llm", "store_wait_ms": value, **WHY}
    assert "store_wait_ms" in str(problem(call("admin", "POST", f"{API}/dependencies", body), 422))


def test_a_file_has_it_and_applied_again_changes_nothing(production: str, ada: Any) -> None:
    edits.create_dependency(dependency="chat", kind="llm", actor=ada, **EDIT)
    exported = "".join(export_plan(production))
    assert "store_wait_ms: 250" in exported
    assert not difference(production, read_plan(exported)).changes
    (changed,) = difference(production, read_plan("dependencies: {chat: {store_wait_ms: 0}}")).changes
    assert changed.after is not None
    assert "store_wait_ms" not in changed.after


def test_old_pods_do_not_know_it(production: str, ada: Any) -> None:
    Dependency.objects.update(store_wait_ms=0)
    assert "waits for Redis" not in newer_settings(production)
    edits.create_dependency(dependency="chat", kind="llm", actor=ada, **EDIT)
    assert "waits for Redis" in newer_settings(production)
