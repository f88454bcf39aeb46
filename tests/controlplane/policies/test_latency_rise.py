"""By how much calls may take longer before limits fall: from an edit, a file, the API or a form to pods."""

from typing import Any

import pytest

from controlplane.editing import edits
from controlplane.editing.plans import apply_plan, difference, export_plan, plan_from_document, read_plan
from controlplane.errors import InvalidEdit
from controlplane.policies.document import environment_of, policy_of
from controlplane.policies.newer_settings import newer_settings
from fuseboard.contract.policy import decode_policy, encode_policy
from tests.controlplane.calling import problem

API = "/api/v1/production"
WHY = {"reason": "Our own machines"}
EDIT: dict[str, Any] = {"environment": "production", **WHY}


def rise_of(name: str) -> int:
    """What the document of pods says, as an agent reads it."""
    policy = decode_policy(encode_policy(policy_of(environment_of("production"))))
    return next(each for each in policy.dependencies if each.name == name).latency_rise_percent


def test_it_is_off_unless_it_is_given(production: str, ada: Any) -> None:
    for kind in ("llm", "internal"):
        edits.create_dependency(dependency=kind, kind=kind, actor=ada, **EDIT)
        assert rise_of(kind) == 0
    assert "latency_rise_percent" not in "".join(export_plan(production))


def test_the_api_sets_and_changes_it(production: str, call: Any) -> None:
    body = {"name": "gpus", "kind": "llm", "latency_rise_percent": 100, **WHY}
    assert call("admin", "POST", f"{API}/dependencies", body).status_code == 201
    assert rise_of("gpus") == 100
    changed = {"latency_rise_percent": 50, "expected_version": 1, **WHY}
    assert call("admin", "PATCH", f"{API}/dependencies/gpus/breaker", changed).status_code == 200
    assert rise_of("gpus") == 50
    assert call("admin", "GET", f"{API}/dependencies/gpus").json()["latency_rise_percent"] == 50


@pytest.mark.parametrize("value", [-1, 1_001])
def test_a_value_out_of_range_names_its_field(production: str, ada: Any, call: Any, value: int) -> None:
    with pytest.raises(InvalidEdit) as error:
        edits.create_dependency(dependency="new", kind="llm", latency_rise_percent=value, actor=ada, **EDIT)
    assert list(error.value.errors) == ["latency_rise_percent"]
    body = {"name": "new", "kind": "llm", "latency_rise_percent": value, **WHY}
    assert "latency_rise_percent" in str(problem(call("admin", "POST", f"{API}/dependencies", body), 422))


def test_a_file_has_it_and_applied_again_changes_nothing(production: str, ada: Any) -> None:
    edits.create_dependency(dependency="gpus", kind="llm", latency_rise_percent=100, actor=ada, **EDIT)
    exported = "".join(export_plan(production))
    assert "latency_rise_percent: 100" in exported
    assert not difference(production, read_plan(exported)).changes
    (changed,) = difference(production, read_plan("dependencies: {gpus: {latency_rise_percent: 0}}")).changes
    assert changed.after is not None
    assert "latency_rise_percent" not in changed.after


def test_old_pods_do_not_know_it(production: str, ada: Any) -> None:
    assert "limits that follow the time of calls" not in newer_settings(production)
    edits.create_dependency(dependency="gpus", kind="internal", latency_rise_percent=1, actor=ada, **EDIT)
    assert "limits that follow the time of calls" in newer_settings(production)


SLOTS = {
    "gpus": {
        "latency_rise_percent": 50,
        "vendor_limits": {"at-once": {"algorithm": "concurrency", "limit": 9, "window_s": 60}},
    }
}
NO_SLOTS = (
    "calls may take 50 % longer, and no limit falls after that: the dependency has no limit of calls at once."
)
NO_FLOOR = "calls may take 50 % longer, and no limit falls after that: no limit follows in this environment."


@pytest.mark.parametrize(
    ("document", "missing"),
    [
        ({"dependencies": {"gpus": {"latency_rise_percent": 50}}}, [NO_SLOTS, NO_FLOOR]),
        ({"dependencies": SLOTS}, [NO_FLOOR]),
        ({"dependencies": SLOTS, "tuning": {"vendor_floor_percent": 10}}, []),
        ({"dependencies": {"gpus": {"timeout_ms": 900}}}, []),
    ],
)
def test_advice_says_why_no_limit_follows(
    production: str, ada: Any, call: Any, document: dict[str, Any], missing: list[str]
) -> None:
    edits.create_dependency(dependency="gpus", kind="internal", actor=ada, **EDIT)
    plan = plan_from_document(document)

    def about_latency(advice: list[str]) -> list[str]:
        return [text for text in advice if "no limit falls" in text]

    planned = about_latency(difference(production, plan).advice)
    assert [text.partition(". ")[0] + "." for text in planned] == [
        f"dependency gpus: {one}" for one in missing
    ]
    apply_plan(environment=production, plan=plan, expected_revision=None, actor=ada, **WHY)
    answered = about_latency(call("admin", "GET", f"{API}/dependencies/gpus").json()["advice"])
    assert [f"dependency gpus: {text}" for text in answered] == planned
