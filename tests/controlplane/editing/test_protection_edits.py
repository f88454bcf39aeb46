"""Protection of pods: from an edit, a file or the API to the document of pods."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.editing.edits.dependency_settings import DependencySettings
from controlplane.editing.plans import (
    copy_configuration,
    difference,
    export_plan,
    plan_from_document,
    read_plan,
)
from controlplane.editing.plans.plan import PlanErrors
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.policies.document import environment_of, policy_of
from controlplane.policies.models import Dependency, Environment
from controlplane.policies.protection import CALL, POD, flat_protection, protection_in
from controlplane.policies.protection_presets import KIND_PRESETS, PRESETS, preset_of_kind, wait_of_kind
from fuseboard.contract.policy import encode_policy
from fuseboard.contract.protection import Bulkhead, CallProtection, PodProtection, Retry
from fuseboard.contract.protection_fields import CALL_SETTINGS, POD_SETTINGS, fits
from fuseboard.contract.words import CallTier
from tests.agents.guarded_pods import PRESET as NEW
from tests.controlplane.calling import problem
from tests.controlplane.published import published_policy

API = "/api/v1/production"
WHY = {"reason": "Slow calls fill our pods"}
EDIT: dict[str, Any] = {"environment": "production", **WHY}

SETTINGS = DependencySettings(breaker={}, timeout_ms=1, wait_ms=0, fallback_note="", protection="off")

FILE = """
protection: {shedding: {queue_max: 200}, routes: {"POST /v1/*": 2000, "GET /slow": 8000}, retries_per_s: 5}
dependencies:
  openai:
    protection:
      tier: critical
      retry: off
      bulkhead: {max_concurrent: 20, shares: [60, 30, 10], when_full: [abort, discard, queue]}
"""


def flat(bulkhead: Bulkhead) -> dict[str, Any]:
    return {name: msgspec.to_builtins(getattr(bulkhead, name)) for name in bulkhead.__struct_fields__}


def published(dependency: str = "openai") -> CallProtection | None:
    """What the document of pods says, as an agent reads it."""
    policy = published_policy()
    return next(each.protection for each in policy.dependencies if each.name == dependency)


def published_for_pods() -> PodProtection | None:
    return published_policy().protection


def set_protection(ada: Any, protection: Any, **more: Any) -> int:
    common = {"dependency": "openai", "expected_version": None, "actor": ada, **EDIT}
    return edits.set_protection(protection=protection, **(common | more))


def refused(do: Any) -> dict[str, list[str]]:
    with pytest.raises(InvalidEdit) as error:
        do()
    return error.value.errors


def test_a_dependency_from_before_has_none_and_the_document_is_as_before(production: str) -> None:
    # As a row that an older version wrote: the column has its default.
    Dependency.objects.filter(name="openai").update(protection={})
    assert published() is None
    assert published_for_pods() is None
    assert b"protection" not in encode_policy(policy_of(environment_of(production)))


@pytest.mark.parametrize("kind", sorted(KIND_PRESETS))
def test_a_new_dependency_has_no_protection_unless_it_is_given(
    production: str, ada: Any, call: Any, kind: str
) -> None:
    edits.create_dependency(dependency="made", kind=kind, actor=ada, **EDIT)
    body = {"name": "by-api", "kind": kind, **WHY}
    assert call("admin", "POST", f"{API}/dependencies", body).status_code == 201
    apply(call, f"dependencies: {{by-file: {{kind: {kind}}}}}")
    for name in ("made", "by-api", "by-file"):
        assert published(name) is None
        assert Dependency.objects.get(name=name).wait_ms == 0


@pytest.mark.parametrize("kind", sorted(KIND_PRESETS))
def test_the_preset_of_a_kind(production: str, ada: Any, kind: str) -> None:
    preset = preset_of_kind(kind, timeout_ms=30_000)
    edits.create_dependency(dependency="new", kind=kind, protection=preset, actor=ada, **EDIT)
    given = published("new")
    assert given is not None
    assert given.sla_ms == {"llm": 30_000, "database": 200}.get(kind, 2_000)
    assert given.bulkhead == NEW
    assert given.retry is not None
    assert given.retry.attempts == {"llm": 3}.get(kind, 2)
    assert wait_of_kind(kind) == {"llm": 3_000}.get(kind, 0)


@pytest.mark.parametrize(("retry", "wait_ms"), [("background", 3_000), ("llm", 3_000), ("user-facing", 0)])
def test_a_preset_of_retries_sets_the_wait_for_a_vendor(
    production: str, ada: Any, call: Any, retry: str, wait_ms: int
) -> None:
    Dependency.objects.filter(name="openai").update(wait_ms=700)
    body = {"preset": {"retry": retry}, "expected_version": 1, **WHY}
    assert call("admin", "PATCH", f"{API}/dependencies/openai/protection", body).status_code == 200
    assert Dependency.objects.get(name="openai").wait_ms == wait_ms
    body = {"preset": {"bulkhead": "small"}, "expected_version": 2, **WHY}
    assert call("admin", "PATCH", f"{API}/dependencies/openai/protection", body).status_code == 200
    assert Dependency.objects.get(name="openai").wait_ms == wait_ms


def test_an_older_row_keeps_its_division(production: str, ada: Any, call: Any) -> None:
    """Also when it is changed, exported, imported, or copied to another environment."""
    old = {name: value for name, value in flat(Bulkhead()).items() if name != "share_idle"}
    row = {"tier": "standard", "sla_ms": 0, "bulkhead": old}
    Dependency.objects.filter(name="openai").update(protection=row)
    exported = "".join(export_plan(production))
    for prune in (False, True):
        assert not difference(production, read_plan(exported), prune=prune), exported
    set_protection(ada, {"bulkhead": {"max_concurrent": 20}})
    assert published() == CallProtection(bulkhead=Bulkhead(max_concurrent=20))
    edits.create_environment(environment="staging", reason="for a test", actor=ada)
    copy_configuration(source=production, environment="staging", reason="for a test", actor=ada)
    copy = Dependency.objects.get(environment="staging", name="openai")
    assert copy.protection["bulkhead"]["share_idle"] is False
    pruned = difference(
        production,
        read_plan("dependencies: {openai: {protection: {bulkhead: {max_concurrent: 20}}}}"),
        prune=True,
    )
    after = [protection_in(change.after or {}) for change in pruned.changes if change.name == "openai"]
    assert all(each["bulkhead"]["share_idle"] is False for each in after)


def test_a_new_dependency_gets_the_parts_that_are_given(production: str, ada: Any, call: Any) -> None:
    edits.create_dependency(dependency="bare", kind="llm", protection="off", actor=ada, **EDIT)
    body = {"name": "api-bare", "kind": "llm", "protection": "off", **WHY}
    assert call("admin", "POST", f"{API}/dependencies", body).status_code == 201
    body = {"name": "api-half", "kind": "llm", "protection": {"retry": None, "sla_ms": 900}, **WHY}
    assert call("admin", "POST", f"{API}/dependencies", body).status_code == 201
    assert published("bare") is published("api-bare") is None
    half = published("api-half")
    assert half is not None
    assert half == CallProtection(sla_ms=900)
    found = difference(production, read_plan("dependencies: {planned: {kind: llm, protection: off}}"))
    assert protection_in(found.changes[0].after or {}) == {}


def test_a_call_waits_for_a_slot_for_less_than_it_can_last() -> None:
    assert preset_of_kind("external", timeout_ms=2_000)["bulkhead"]["queue_timeout_ms"] == 1_000
    assert preset_of_kind("external", timeout_ms=60_000)["bulkhead"]["queue_timeout_ms"] == 5_000


def test_an_edit_changes_what_it_gives_and_a_part_can_be_off(production: str, ada: Any) -> None:
    set_protection(ada, "off")
    assert published() is None
    set_protection(ada, {"bulkhead": {"max_concurrent": 20}})
    small = msgspec.structs.replace(NEW, max_concurrent=20)
    assert published() == CallProtection(bulkhead=small)
    # All values are stored: a later default does not change the row.
    assert set(Dependency.objects.get(name="openai").protection["bulkhead"]) == set(CALL.names_in("bulkhead"))
    set_protection(ada, {"tier": "critical", "bulkhead": {"borrow": True}, "retry": {}})
    assert published() == CallProtection(
        tier=CallTier.CRITICAL, bulkhead=msgspec.structs.replace(small, borrow=True), retry=Retry()
    )
    set_protection(ada, {"bulkhead": None, "tier": "standard"})
    assert published() == CallProtection(retry=Retry())
    set_protection(ada, {"retry": "off"})
    assert published() is None


@pytest.mark.parametrize("part", sorted(PRESETS))
def test_each_preset_can_be_selected_and_values_override_it(production: str, ada: Any, part: str) -> None:
    set_protection(ada, "off")
    for name, change in PRESETS[part].items():
        set_protection(ada, {}, preset={part: name})
        stored = flat_protection(Dependency.objects.get(name="openai").protection)
        assert flat_protection(change).items() <= stored.items()
    set_protection(ada, {"retry": {"attempts": 5}}, preset={"retry": "user-facing"})
    given = published()
    assert given is not None
    assert given.retry is not None
    assert (given.retry.attempts, given.retry.base_ms) == (5, 500)
    errors = refused(lambda: set_protection(ada, {}, preset={part: "huge"}))
    assert list(errors) == [f"preset.{part}"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"bulkhead": {"max_concurrent": 0}}, "protection.bulkhead.max_concurrent"),
        ({"bulkhead": {"max_concurrent": True}}, "protection.bulkhead.max_concurrent"),
        ({"bulkhead": {"shares": [50, 50]}}, "protection.bulkhead.shares"),
        ({"bulkhead": {"shares": [50, 35, 16]}}, "protection.bulkhead.shares"),
        ({"bulkhead": {"when_full": ["queue", "abort", "wait"]}}, "protection.bulkhead.when_full"),
        ({"bulkhead": {"size": 5}}, "protection.bulkhead.size"),
        ({"bulkhead": 50}, "protection.bulkhead"),
        ({"retry": {"cap_ms": 100}}, "protection.retry.cap_ms"),
        ({"retry": {"jitter": "some"}}, "protection.retry.jitter"),
        ({"retry": {"idempotent": 1}}, "protection.retry.idempotent"),
        ({"retry": {"budget_percent": 21}}, "protection.retry.budget_percent"),
        ({"retry": {"load_factor_percent": 105}}, "protection.retry.budget_percent"),
        ({"bulkhead": 0}, "protection.bulkhead"),
        ({"tier": "gold"}, "protection.tier"),
        ({"speed": 5}, "protection.speed"),
        ("on", "protection"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field_and_what_to_do(
    production: str, ada: Any, change: Any, field: str
) -> None:
    before = Environment.objects.get(pk=production).revision
    errors = refused(lambda: set_protection(ada, change))
    assert list(errors) == [field]
    assert errors[field][0].endswith(".")
    assert Environment.objects.get(pk=production).revision == before
    # A file says the same.
    if isinstance(change, dict):
        with pytest.raises(PlanErrors) as wrong:
            difference(production, plan_from_document({"dependencies": {"openai": {"protection": change}}}))
        assert field in str(wrong.value)


@pytest.mark.parametrize("setting", [*CALL_SETTINGS, *POD_SETTINGS], ids=lambda setting: setting.path)
def test_the_ends_of_each_range_are_those_of_the_contract(production: str, ada: Any, setting: Any) -> None:
    assert fits(setting, setting.default)
    if setting.kind in ("number", "numbers"):
        for value, allowed in (
            (setting.least, True),
            (setting.most, True),
            (setting.least - 1, False),
            (setting.most + 1, False),
        ):
            assert fits(setting, [value] * 3 if setting.kind == "numbers" else value) == allowed
    assert not fits(setting, None)
    assert not fits(setting, "")
    assert not fits(setting, 1.5)


def test_a_version_conflict_changes_nothing(production: str, ada: Any) -> None:
    set_protection(ada, {"sla_ms": 5}, expected_version=1)
    with pytest.raises(EditConflict):
        set_protection(ada, {"sla_ms": 6}, expected_version=1)
    given = published()
    assert given is not None
    assert given.sla_ms == 5


def test_the_audit_and_the_history_have_flat_fields(production: str, ada: Any) -> None:
    set_protection(ada, {"bulkhead": {"max_concurrent": 20}})
    entry = Entry.objects.get(action="protection.set")
    assert entry.before["protection.bulkhead.max_concurrent"] == 50
    assert entry.after["protection.bulkhead.max_concurrent"] == 20
    edits.set_pod_protection(protection={"shedding": {}}, actor=ada, **EDIT)
    entry = Entry.objects.get(action="pod_protection.set")
    assert entry.after["protection.shedding.queue_max"] == 100


def test_a_file_sets_it_and_the_export_changes_nothing(production: str, ada: Any, call: Any) -> None:
    before = environment_of(production).revision
    apply(call, FILE)
    given, pods = published(), published_for_pods()
    assert given is not None
    assert given.bulkhead is not None
    assert pods is not None
    assert (given.tier, given.retry, given.sla_ms) == (CallTier.CRITICAL, None, 30_000)
    assert (given.bulkhead.max_concurrent, given.bulkhead.shares) == (20, (60, 30, 10))
    assert [(route.pattern, route.sla_ms) for route in pods.routes] == [
        ("POST /v1/*", 2000),
        ("GET /slow", 8000),
    ]
    assert pods.shedding is not None
    assert pods.shedding.queue_max == 200
    exported = "".join(export_plan(production))
    for prune in (False, True):
        assert not difference(production, read_plan(exported), prune=prune), exported
    # With prune, the file is complete: what it leaves out is off, or the default.
    pruned = difference(
        production,
        read_plan("protection: {}\ndependencies: {openai: {protection: {sla_ms: 7}}}"),
        prune=True,
    )
    changes = {change.kind: protection_in(change.after or {}) for change in pruned.changes}
    assert changes == {"dependency": {"tier": "standard", "sla_ms": 7}, "environment": {}}
    text = difference(production, read_plan("protection: {routes: {'GET /': 50}}")).to_text()
    assert "protection.routes: [POST /v1/* 2,000 ms, GET /slow 8,000 ms] -> [GET / 50 ms]" in text

    edits.rollback(to_revision=before, expected_revision=None, actor=ada, **EDIT)
    assert published_for_pods() is None
    assert published() is not None
    assert published() != given


def test_errors_of_a_file_have_their_line(production: str) -> None:
    with pytest.raises(PlanErrors) as wrong:
        read_plan("dependencies:\n  openai:\n    protection:\n      retry:\n        attempts: 9\n")
    assert "line 5: dependencies.openai.protection.retry.attempts: Enter a whole number from 1 to 5." in str(
        wrong.value
    )
    with pytest.raises(PlanErrors) as wrong:
        read_plan("protection:\n  shedding: {queue_max: 0}\n")
    assert "line 2: protection.shedding.queue_max" in str(wrong.value)


def test_a_copy_makes_another_environment_the_same(production: str, ada: Any, call: Any) -> None:
    apply(call, FILE)
    edits.create_environment(environment="staging", reason="for a test", actor=ada)
    staging: dict[str, Any] = {"environment": "staging", "reason": "for a test", "actor": ada}
    edits.create_dependency(dependency="openai", kind="llm", **staging)
    edits.set_pod_protection(protection={"readiness": {}}, **staging)
    edits.create_dependency(dependency="bare", kind="llm", protection="off", actor=ada, **EDIT)
    copy_configuration(source=production, **staging)
    policies = [policy_of(environment_of(name)) for name in (production, "staging")]
    assert policies[0].protection == policies[1].protection
    assert [each.protection for each in policies[0].dependencies] == [
        each.protection for each in policies[1].dependencies
    ]


def test_pods_are_protected_and_a_part_observes_for_at_most_seven_days(production: str, ada: Any) -> None:
    def change(protection: Any, **more: Any) -> int:
        return edits.set_pod_protection(protection=protection, actor=ada, **EDIT, **more)

    change({"shedding": {"shed_at": 60}, "readiness": {}, "retries_per_s": 3})
    change({}, observe_for_s={"shedding": 3600})
    pods = published_for_pods()
    assert pods is not None
    assert pods.shedding is not None
    assert pods.readiness is not None
    left_us = pods.observe.shedding_until_us - timezone.now().timestamp() * 1_000_000
    assert 0 < left_us <= 3600 * 1_000_000
    week_us = int((timezone.now() + timedelta(days=7)).timestamp() * 1_000_000)
    change({"observe": {"retry_until_us": week_us}})
    for later_us in (week_us + 120_000_000, 2**53):
        errors = refused(lambda until=later_us: change({"observe": {"bulkhead_until_us": until}}))
        assert "at most 7 days" in errors["protection.observe.bulkhead_until_us"][0]
    assert "observe_for_s.luck" in refused(lambda: change({}, observe_for_s={"luck": 5}))
    assert "observe_for_s.retry" in refused(lambda: change({}, observe_for_s={"retry": 7 * 86_400 + 1}))
    change({}, observe_for_s={"shedding": 0, "retry": 0})
    pods = published_for_pods()
    assert pods is not None
    assert pods.observe == PodProtection().observe
    contradiction = refused(lambda: change({"shedding": {"shed_at": 95}}))
    assert list(contradiction) == ["protection.shedding.shed_hard_at"]
    change({"routes": [{"pattern": "GET /", "sla_ms": 50}]})
    assert "protection.routes" in refused(lambda: change({"routes": [{"pattern": "GET /"}]}))
    assert "protection.routes" in refused(lambda: change({"routes": [{"pattern": "", "sla_ms": 5}]}))
    twice = [{"pattern": "GET /", "sla_ms": 5}] * 2
    assert "twice" in refused(lambda: change({"routes": twice}))["protection.routes"][0]
    change("off")
    assert published_for_pods() is None


def test_the_api_shows_and_sets_it(production: str, call: Any) -> None:
    path = f"{API}/dependencies/openai"
    shown = call("viewer", "GET", path).json()
    assert shown["protection"]["bulkhead"]["shares"] == [50, 35, 15]
    assert shown["protection"]["local_rate"] is None
    body = {"protection": {"bulkhead": {"max_concurrent": 30}, "retry": None}, "preset": {"sla": "api"}}
    answer = call("admin", "PATCH", f"{path}/protection", body | WHY)
    assert answer.status_code == 428
    answer = call("admin", "PATCH", f"{path}/protection", {"expected_version": 1, **body, **WHY})
    assert answer.status_code == 200, answer.content
    given = published()
    assert given is not None
    assert given.bulkhead is not None
    assert (given.sla_ms, given.bulkhead.max_concurrent, given.retry) == (2_000, 30, None)
    answer = call("admin", "PATCH", f"{path}/protection", {"protection": "off", "expected_version": 2, **WHY})
    assert answer.status_code == 200, answer.content
    assert call("viewer", "GET", path).json()["protection"] is None
    wrong = {"protection": {"bulkhead": {"max_concurrent": "20"}}, **WHY}
    errors = problem(call("admin", "PATCH", f"{path}/protection", wrong), 422)["errors"]
    assert any("max_concurrent" in error["field"] for error in errors), errors
    wrong = {"protection": {"bulkhead": {"shares": [1, 1, 1]}}, "expected_version": 3, **WHY}
    errors = problem(call("admin", "PATCH", f"{path}/protection", wrong), 422)["errors"]
    assert [error["field"] for error in errors] == ["protection.bulkhead.shares"]

    body = {"protection": {"shedding": {}}, "observe_for_s": {"shedding": 60}, **WHY}
    body["expected_revision"] = environment_of(production).revision
    assert call("admin", "PATCH", f"{API}/configuration/protection", body).status_code == 200
    shown = call("viewer", "GET", f"{API}/configuration").json()["protection"]
    assert shown["shedding"]["shed_at"] == 70
    assert shown["readiness"] is None
    assert shown["observe"]["shedding_until_us"] > 0 == shown["observe"]["retry_until_us"]


def test_the_schema_of_the_api_has_ranges_units_and_presets(production: str, call: Any) -> None:
    from controlplane.api.api import api

    schemas = json.loads(json.dumps(api.get_openapi_schema()))["components"]["schemas"]
    most = schemas["BulkheadIn"]["properties"]["max_concurrent"]
    assert (most["minimum"], most["maximum"], most["default"]) == (1, 10_000, 50)
    assert "milliseconds" in schemas["RetryIn"]["properties"]["base_ms"]["description"]
    for part in PRESETS:
        options = schemas["PresetsIn"]["properties"][part]["anyOf"][0]["enum"]
        assert options == list(PRESETS[part]), "a preset is missing in the API"


def test_a_schedule_and_a_change_request_can_carry_it(production: str, ada: Any) -> None:
    """Both store a document that is read again later."""
    found = difference(production, plan_from_document({"protection": {"readiness": {"hold_ms": 20_000}}}))
    assert found.changes[0].after is not None
    assert protection_in(found.changes[0].after)["readiness"] == {"unready_percent": 25, "hold_ms": 20_000}
    assert POD.parts == ("shedding", "readiness")


def test_advice_names_what_is_seldom_meant(production: str, ada: Any, call: Any) -> None:
    change = {
        "sla_ms": 60_000,
        "bulkhead": {"max_concurrent": 500, "queue_timeout_ms": 30_000, "queues": [0, 0, 0]},
        "retry": {"idempotent": False, "budget_percent": 50, "load_factor_percent": 150},
    }
    set_protection(ada, change)
    said = " ".join(call("viewer", "GET", f"{API}/dependencies/openai").json()["advice"])
    for words in (
        "SLA is 60,000 ms",
        "queue timeout is 30,000 ms",
        "no places",
        "httpx",
        "after the last retry",
        "50 %",
    ):
        assert words in said, words
    assert "_" not in said, "the words of the form, and no name of a field"
    planned = difference(
        production, plan_from_document({"dependencies": {"openai": {"protection": change | {"sla_ms": 1}}}})
    )
    assert any("queue timeout is 30,000 ms" in text for text in planned.advice)
    # The presets themselves need no advice but a fallback.
    for kind in KIND_PRESETS:
        name = f"new-{kind}"
        edits.create_dependency(
            dependency=name,
            kind=kind,
            fallback_note="The last answer",
            protection=preset_of_kind(kind, timeout_ms=30_000),
            actor=ada,
            **EDIT,
        )
        assert call("viewer", "GET", f"{API}/dependencies/{name}").json()["advice"] == []


def apply(call: Any, document: str) -> None:
    revision = call("admin", "GET", f"{API}/configuration").json()["revision"]
    answer = call("admin", "POST", f"{API}/apply?expected_revision={revision}&reason=for+a+test", document)
    assert answer.status_code == 200, answer.content
