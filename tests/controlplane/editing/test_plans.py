"""The configuration as a file: what it changes, all or nothing, and no change the second time."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.editing.plans import (
    PlanErrors,
    apply_plan,
    difference,
    export_csv,
    export_plan,
    plan_from_document,
    read_plan,
)
from controlplane.errors import EditConflict
from controlplane.policies.models import Environment, Revision, Tenant, TenantQuota
from controlplane.policies.state import read_state

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "quotas.yaml"
REASON = "Imported for a test"


def apply(ada: Any, text: str | bytes, **more: Any) -> int:
    options = {
        "environment": "production",
        "expected_revision": None,
        "reason": REASON,
        "actor": ada,
    } | more
    return apply_plan(plan=read_plan(text), **options)


def head() -> int:
    return Environment.objects.get(pk="production").revision


def test_the_example_is_applied_as_one_revision_and_a_second_time_changes_nothing(
    production: str, ada: Any, text_limits: Any
) -> None:
    from tests.controlplane.publishing.test_publishing import record

    before = head()
    revision = apply(ada, EXAMPLE.read_bytes(), expected_revision=before)
    assert revision == before + 1 == head()
    [limit] = record(text_limits, "acme-retail").quotas
    assert (limit.limit, limit.window_ms, limit.burst) == (2500, 60_000, 250)
    assert limit.failure_policy == "fail_open"  # from the tier's quota, because the file has no other value
    [entry] = Entry.objects.filter(revision=revision)
    assert (entry.action, entry.after["tenant.created"], entry.reason) == ("plan.applied", 2, REASON)
    kept = {(change.kind, change.name) for change in Revision.objects.get(number=revision).changes.all()}
    assert kept == {("tenant", "acme-retail"), ("tenant", "customer-0042"), ("tier", "pro")}

    assert apply(ada, EXAMPLE.read_bytes()) == revision
    assert head() == revision
    assert not difference("production", read_plan(EXAMPLE.read_bytes()))


def test_the_difference_shows_old_and_new_values(production: str, ada: Any) -> None:
    plan = read_plan("tenants:\n  acme: {tier: free, suspended: true}\n  new: {tier: pro}\n")
    found = difference("production", plan)
    assert found.to_text() == (
        f"production at revision {head()}: 1 to create, 1 to change, 0 to remove\n"
        "~ tenant acme\n    suspended: false -> true\n    tier: 'pro' -> 'free'\n"
        "+ tenant new\n    suspended: false\n    tier: 'pro'\n    title: ''\n"
    )
    document = found.to_document(most=1)
    assert (document["created"], document["changed"], document["left_off"]) == (1, 1, 1)
    assert document["changes"][0]["fields"][0] == {"field": "suspended", "before": False, "after": True}
    assert head() == found.revision


def test_things_that_a_plan_does_not_contain_stay_unless_pruned(production: str, ada: Any) -> None:
    apply(
        ada,
        "tenants:\n  acme:\n    quotas: {a: {limit: 1, window_s: 6}, b: {limit: 2, window_s: 6}}\n",
    )
    apply(ada, "tenants:\n  other: {tier: free}\n")
    text = "tenants:\n  acme:\n    quotas:\n      b: {limit: 3}\n"
    assert difference("production", read_plan(text)).counts == {"created": 0, "changed": 1, "removed": 0}
    apply(ada, text, prune=True)
    assert list(TenantQuota.objects.values_list("name", "limit", "window_s")) == [("b", 3, 6)]
    assert list(Tenant.objects.filter(deleted=False).values_list("key", flat=True)) == ["acme"]
    # The file has no section for tiers or dependencies, so a prune keeps them.
    assert {"tier", "dependency"} <= {kind for kind, _ in read_state("production")}


def test_an_export_changes_nothing_and_restores_everything(production: str, ada: Any, hour: Any) -> None:
    strange = 'Käse "&" \\ \U0001f600 # no: [comment]'
    apply_plan(
        plan=plan_from_document(
            {
                "tenants": {
                    "null": {"tier": "pro", "title": "yes"},
                    "- a: \u00b7 {b}": {"tier": "free", "title": strange, "suspended": True},
                    "=1+1": {
                        "tier": "free",
                        "title": "'@already",
                        "quotas": {"0": {"limit": 5, "window_s": 60, "burst": 2, "per": ["user", "ip"]}},
                    },
                    "soon": {
                        "tier": "free",
                        "quotas": {"requests": {"limit": 9, "window_s": 1, "expires_at": hour.isoformat()}},
                    },
                },
                "tuning": {"ramp_ms": 4_000},
                "subject_limits": {"by-ip": {"limit": 5, "window_s": 60, "burst": 5, "per": ["ip"]}},
                "dependencies": {
                    "mail": {
                        "kind": "external",
                        "vendor_limits": {"c": {"limit": 3, "window_s": 1, "reserved_percent": 40}},
                    }
                },
                "tiers": {"gold": {"priority": 80}},
                "default_tier": "gold",
            }
        ),
        environment="production",
        expected_revision=None,
        reason=REASON,
        actor=ada,
    )
    state = read_state("production")
    yaml, table = "".join(export_plan("production")), "".join(export_csv("production"))
    for text in (yaml, table):
        assert not difference("production", read_plan(text), prune=True), text
    edits.rollback(environment="production", to_revision=1, expected_revision=None, reason=REASON, actor=ada)
    assert read_state("production") != state
    apply(ada, yaml, prune=True)
    assert read_state("production") == state


def test_a_spreadsheet_executes_no_exported_cell(production: str, ada: Any) -> None:
    for number, title in enumerate(("=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "'=1")):
        edits.create_tenant(
            environment="production",
            tenant=f"t{number}",
            tier="free",
            title=title,
            reason=REASON,
            actor=ada,
        )
    cells = [line.split(",")[2] for line in "".join(export_csv("production")).splitlines()[1:]]
    assert [cell for cell in cells if cell] == ["'=HYPERLINK(1)", "'+1", "'-1", "'@SUM(A1)", "''=1"]


def test_csv_has_a_row_for_each_quota(production: str, ada: Any) -> None:
    apply(
        ada,
        "\ufefftenant,tier,suspended,quota,limit,window_s,burst,per,reserved_percent\r\n"
        "acme,,,requests,50,60,5,,0\r\nacme,,,uploads,7,3600,1,user ip,\r\nnew,free,true,,,,,,\r\n",
    )
    state = read_state("production")
    assert state["tenant", "acme"]["quotas.uploads.per"] == ["user", "ip"]
    assert state["tenant", "acme"]["quotas.requests.reserved_percent"] == 0
    assert "quotas.uploads.reserved_percent" not in state["tenant", "acme"]
    assert (state["tenant", "acme"]["tier"], state["tenant", "new"]["suspended"]) == ("pro", True)


def test_a_plan_for_an_older_configuration_is_refused_completely(production: str, ada: Any) -> None:
    seen = head()
    apply(ada, "tenants:\n  acme: {tier: free}\n")
    with pytest.raises(EditConflict):
        apply(ada, "tenants:\n  acme: {tier: enterprise}\n", expected_revision=seen)
    with pytest.raises(EditConflict):
        apply(ada, "tenants:\n  acme: {tier: free}\n", expected_revision=seen)
    assert read_state("production")["tenant", "acme"]["tier"] == "free"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("tenants:\n  acme: {tier: nowhere}\n", 2, "There is no tier 'nowhere'"),
        ("tenants:\n  new: {title: x}\n", 2, "Enter its tier"),
        ("tenants:\n  acme:\n    quotas:\n      r: {limit: 5}\n", 2, "A new limit needs this"),
        (
            "tiers:\n  pro:\n    quotas: {r: {limit: 5, window_s: 6, algorithm: sliding_window, burst: 9}}\n",
            2,
            "Only a token bucket has a burst",
        ),
        (
            "tenants:\n  acme:\n    quotas: {r: {limit: 5, window_s: 6, dependency: gone}}\n",
            2,
            "no dependency",
        ),
        ("default_tier: gone\n", 1, "There is no such tier"),
        ("environment: staging\ntenants: {}\n", 0, "The plan is for staging"),
        ("dependencies:\n  new: {title: x}\n", 2, "Choose a kind"),
        (
            "tenants:\n  acme:\n    quotas: {r: {limit: 5, window_s: 6, expires_at: '2020-01-01T00:00Z'}}\n",
            2,
            "Choose a time in the future",
        ),
    ],
)
def test_a_plan_that_does_not_fit_the_configuration_is_refused_by_line(
    production: str, ada: Any, text: str, line: int, said: str
) -> None:
    before = read_state("production")
    with pytest.raises(PlanErrors) as refused:
        apply(ada, text)
    [error] = refused.value.found
    assert said in error.message
    assert error.line == line
    assert (read_state("production"), head()) == (before, 3)


def test_a_prune_removes_nothing_that_is_in_use(production: str, ada: Any) -> None:
    for text, said in (
        ("tiers:\n  anonymous: {}\n", "Tenant acme still has this tier"),
        ("tiers:\n  pro: {}\n", "It is the default tier"),
    ):
        with pytest.raises(PlanErrors, match=said):
            apply(ada, text, prune=True)
    assert head() == 3
