"""Two admins change what protects every pod: the second one gets a conflict."""

from typing import Any

import pytest

from controlplane.editing import edits
from controlplane.editing.edits.pod_protection import preview_pod_protection
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.policies.document import environment_of
from controlplane.policies.models import Dependency
from tests.controlplane.calling import problem

PATH = "/api/v1/production/configuration"
EDIT: dict[str, Any] = {"environment": "production", "reason": "Slow calls fill our pods"}


def head() -> int:
    return environment_of("production").revision


def change(ada: Any, protection: Any, expected_revision: int | None = None, **more: Any) -> int:
    return edits.set_pod_protection(
        protection=protection, expected_revision=expected_revision, actor=ada, **EDIT, **more
    )


def test_a_change_of_the_same_thing_conflicts_and_changes_nothing(production: str, ada: Any) -> None:
    read = head()
    change(ada, {"shedding": {"queue_max": 50}}, read)
    with pytest.raises(EditConflict) as conflict:
        change(ada, {"shedding": {"queue_max": 70}}, read)
    assert environment_of(production).protection["shedding"]["queue_max"] == 50
    assert conflict.value.by == ada.name
    assert conflict.value.changed["protection.shedding.queue_max"] == 50
    assert head() == read + 1, "a conflict makes no revision"
    change(ada, {"shedding": {"queue_max": 70}}, head())
    assert environment_of(production).protection["shedding"]["queue_max"] == 70


def test_other_edits_do_not_conflict(production: str, ada: Any) -> None:
    change(ada, {"shedding": {}})
    read = head()
    edits.create_tenant(tenant="initech", tier="free", actor=ada, **EDIT)
    edits.set_tuning(tuning={"probe_interval_ms": 5_000}, actor=ada, **EDIT)
    change(ada, {"shedding": {"queue_max": 70}}, read)
    # There and back again: nothing that the admin saw is different.
    read = head()
    change(ada, {"retries_per_s": 3})
    change(ada, {"retries_per_s": 10})
    change(ada, {"shedding": {"queue_max": 80}}, read)
    assert environment_of(production).protection["shedding"]["queue_max"] == 80


def test_a_revision_that_was_never_made_conflicts(production: str, ada: Any) -> None:
    """As after a restore of Postgres: nothing is known of what the admin saw."""
    with pytest.raises(EditConflict):
        change(ada, {"shedding": {}}, head() + 5)
    assert environment_of(production).protection == {}


def test_a_file_that_changes_it_conflicts_too(production: str, ada: Any, call: Any) -> None:
    read = head()
    answer = call(
        "admin",
        "POST",
        f"/api/v1/production/apply?expected_revision={read}&reason=for+a+test",
        "protection: {readiness: {hold_ms: 20000}}",
    )
    assert answer.status_code == 200, answer.content
    with pytest.raises(EditConflict):
        change(ada, {"shedding": {}}, read)


def test_the_api_needs_the_revision_and_answers_409(production: str, call: Any) -> None:
    tag = call("admin", "GET", PATH).headers["ETag"]
    body: dict[str, Any] = {"protection": {"shedding": {}}, "reason": EDIT["reason"]}
    assert call("admin", "PATCH", f"{PATH}/protection", body).status_code == 428
    answer = call("admin", "PATCH", f"{PATH}/protection", body, **{"If-Match": tag})
    assert answer.status_code == 200, answer.content
    body["protection"] = {"readiness": {}}
    answer = call("admin", "PATCH", f"{PATH}/protection", body, **{"If-Match": tag})
    assert "protection.shedding.queue_max" in problem(answer, 409)["changed"]
    assert environment_of(production).protection.keys() == {"retries_per_s", "shedding"}


def test_the_preview_writes_nothing(production: str, ada: Any) -> None:
    before, after = preview_pod_protection(
        environment=production, protection={"shedding": {}}, observe_for_s={"shedding": 60}
    )
    assert before == {"protection.retries_per_s": 10, "protection.routes": []}
    assert after["protection.shedding.queue_max"] == 100
    assert after["protection.observe.shedding_until_us"] > 0
    assert environment_of(production).protection == {}
    with pytest.raises(InvalidEdit):
        preview_pod_protection(environment=production, protection={"shedding": {"queue_max": 0}})


@pytest.mark.parametrize("pattern", ["a\x07", "GET /\n", " GET /", "GET / ", "GET \u202e/"])
def test_a_pattern_that_no_form_can_display_is_refused(
    production: str, ada: Any, call: Any, pattern: str
) -> None:
    """The form could not save a pattern with a line break again, and changed one with blanks at its ends."""
    body = {
        "protection": {"routes": [{"pattern": pattern, "sla_ms": 5}]},
        "expected_revision": head(),
        "reason": EDIT["reason"],
    }
    errors = problem(call("admin", "PATCH", f"{PATH}/protection", body), 422)["errors"]
    assert [error["field"] for error in errors] == ["protection.routes"]
    with pytest.raises(InvalidEdit):
        change(ada, body["protection"])


def test_what_is_off_cannot_observe(production: str, ada: Any) -> None:
    with pytest.raises(InvalidEdit) as error:
        change(ada, "off", observe_for_s={"shedding": 60})
    assert list(error.value.errors) == ["observe_for_s"]


def test_a_budget_above_the_load_factor_stays_where_it_is_stored(production: str, ada: Any) -> None:
    """A row from before this check can be edited, and only the contradiction cannot be made again."""
    row = Dependency.objects.get(name="openai")
    row.protection["retry"] |= {"budget_percent": 50}
    row.save()

    def edit(protection: Any) -> int:
        return edits.set_protection(
            dependency="openai", protection=protection, expected_version=None, actor=ada, **EDIT
        )

    edit({"sla_ms": 700})
    with pytest.raises(InvalidEdit) as error:
        edit({"retry": {"budget_percent": 40}})
    assert "at most 20" in error.value.errors["protection.retry.budget_percent"][0]
    edit({"retry": {"load_factor_percent": 160}})
