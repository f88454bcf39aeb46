"""The bounds of the parts of a stream and the timeouts of tiers: from an edit, a file or the API to pods."""

from typing import Any

import pytest

from controlplane.editing import edits
from controlplane.editing.plans import difference, export_plan, read_plan
from controlplane.errors import InvalidEdit
from controlplane.policies.fields import dependency_fields
from controlplane.policies.models import Dependency
from controlplane.policies.protection_advice import protection_advice
from tests.controlplane.calling import problem
from tests.controlplane.published import published_policy

API = "/api/v1/production"
WHY = {"reason": "Streams end in the middle"}
EDIT: dict[str, Any] = {"environment": "production", **WHY}


def bounds(name: str) -> tuple[int, int]:
    """What the document of pods says, as an agent reads it."""
    policy = published_policy()
    found = next(each for each in policy.dependencies if each.name == name)
    return found.first_part_ms, found.between_parts_ms


@pytest.mark.parametrize(("kind", "expected"), [("llm", (30_000, 60_000)), ("external", (0, 0))])
def test_the_kind_of_a_new_dependency_sets_them(
    production: str, ada: Any, call: Any, kind: str, expected: tuple[int, int]
) -> None:
    edits.create_dependency(dependency="by-edit", kind=kind, actor=ada, **EDIT)
    call("admin", "POST", f"{API}/dependencies", {"name": "by-api", "kind": kind, **WHY})
    revision = call("admin", "GET", f"{API}/configuration").json()["revision"]
    address = f"{API}/apply?expected_revision={revision}&reason=for+a+test"
    assert call("admin", "POST", address, f"dependencies: {{by-file: {{kind: {kind}}}}}").status_code == 200
    assert [bounds(name) for name in ("by-edit", "by-api", "by-file")] == [expected] * 3


def test_values_that_are_given_replace_those_of_the_kind(production: str, call: Any) -> None:
    body = {"name": "quick", "kind": "llm", "first_part_ms": 5_000, "between_parts_ms": 0, **WHY}
    assert call("admin", "POST", f"{API}/dependencies", body).status_code == 201
    assert bounds("quick") == (5_000, 0)
    changed = {"between_parts_ms": 7_000, "expected_version": 1, **WHY}
    assert call("admin", "PATCH", f"{API}/dependencies/quick/breaker", changed).status_code == 200
    assert bounds("quick") == (5_000, 7_000)
    shown = call("admin", "GET", f"{API}/dependencies/quick").json()
    assert (shown["first_part_ms"], shown["between_parts_ms"]) == (5_000, 7_000)


@pytest.mark.parametrize("value", [-1, 600_001])
def test_a_value_out_of_range_names_its_field(production: str, ada: Any, call: Any, value: int) -> None:
    with pytest.raises(InvalidEdit) as error:
        edits.create_dependency(dependency="new", kind="llm", first_part_ms=value, actor=ada, **EDIT)
    assert list(error.value.errors) == ["first_part_ms"]
    body = {"name": "new", "kind": "llm", "between_parts_ms": value, **WHY}
    assert "between_parts_ms" in str(problem(call("admin", "POST", f"{API}/dependencies", body), 422))


def test_a_file_has_them_and_applied_again_changes_nothing(production: str, ada: Any) -> None:
    edits.create_dependency(dependency="chat", kind="llm", actor=ada, **EDIT)
    exported = "".join(export_plan(production))
    assert "first_part_ms: 30000" in exported
    assert not difference(production, read_plan(exported)).changes
    (changed,) = difference(production, read_plan("dependencies: {chat: {between_parts_ms: 0}}")).changes
    assert changed.after is not None
    assert "between_parts_ms" not in changed.after


def test_timeouts_of_tiers_reach_pods_and_advice(production: str, ada: Any) -> None:
    protection = {"timeouts_ms": [180_000, 0, 1_000], "bulkhead": {}, "sla_ms": 100_000}
    edits.create_dependency(dependency="chat", kind="llm", protection=protection, actor=ada, **EDIT)
    policy = published_policy(production)
    found = next(each for each in policy.dependencies if each.name == "chat").protection
    assert found is not None
    assert found.timeouts_ms == (180_000, 0, 1_000)
    advice = " ".join(protection_advice(dependency_fields(Dependency.objects.get(name="chat"))))
    # An SLA below the longest timeout is fine; a queue longer than the shortest timeout is not.
    assert "SLA" not in advice
    assert "not below the timeout of a call, 1,000 ms" in advice
