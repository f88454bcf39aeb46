"""What a new row gets, and which existing rows differ from it."""

from typing import Any

import msgspec
import pytest

from controlplane.editing import edits
from controlplane.editing.plans import apply_plan, difference, read_plan
from controlplane.policies.document import environment_of, limit_of, policy_of
from controlplane.policies.limits import set_columns
from controlplane.policies.models import Dependency, Kind, SubjectLimit, TenantQuota, TierQuota
from controlplane.policies.older_defaults import differing_rows
from controlplane.policies.without_redis import refuses_most, without_redis
from dashboard.views.limits.outage import outage_words
from dashboard.views.limits.template_form import TemplateForm
from fuseboard.contract.policy import BreakerPolicy, Limit, Tuning
from fuseboard.contract.words import DEFAULT_ENVIRONMENT
from tests.controlplane.calling import API, send, token_of

pytestmark = pytest.mark.django_db(transaction=True)

ENVIRONMENT = DEFAULT_ENVIRONMENT
WHY = "for a test"
CALLERS = {"limit": 10, "window_s": 60, "burst": 10, "per": ["ip"]}


def old_rows(ada: Any) -> None:
    """Rows with the defaults of 0.1.0."""
    common: dict[str, Any] = {"environment": ENVIRONMENT, "reason": WHY, "actor": ada}
    edits.create_dependency(dependency="ledger", kind="database", breaker={"slow_percent": 100}, **common)
    edits.set_subject_limit(name="logins", failure_policy="fail_open", **CALLERS, **common)
    tier: dict[str, Any] = {"tier": "pro", "quota": "requests", "expected_version": None}
    edits.set_tier_quota(failure_policy="local_share", **tier, **common)


def test_a_new_dependency_opens_at_half_of_the_calls_slow(production: str, ada: Any) -> None:
    for kind in Kind.values:
        edits.create_dependency(
            environment=production, dependency=f"new-{kind}", kind=kind, reason=WHY, actor=ada
        )
    plan = "dependencies: {planned: {kind: llm}}"
    found = difference(production, read_plan(plan))
    apply_plan(
        environment=production,
        plan=read_plan(plan),
        expected_revision=found.revision,
        reason=WHY,
        actor=ada,
    )
    new = Dependency.objects.filter(name__startswith="new-") | Dependency.objects.filter(name="planned")
    assert set(new.values_list("slow_percent", flat=True)) == {50}


def test_the_policy_document_keeps_the_meaning_of_an_omitted_field(production: str, ada: Any) -> None:
    assert BreakerPolicy().slow_percent == 100
    edits.create_dependency(
        environment=production, dependency="ledger", kind="database", reason=WHY, actor=ada
    )
    document = policy_of(environment_of(production))
    sent = next(each for each in msgspec.to_builtins(document)["dependencies"] if each["name"] == "ledger")
    assert sent["breaker"]["slow_percent"] == 50


def test_a_new_limit_of_callers_without_a_tenant_keeps_its_local_share(production: str, ada: Any) -> None:
    edits.set_subject_limit(environment=production, name="typed", reason=WHY, actor=ada, **CALLERS)
    token = token_of("admin")
    answer = send(token, "PUT", f"{API}/subject-limits/by-api", CALLERS | {"reason": WHY})
    assert answer.status_code == 200, answer.content
    plan = read_plan("subject_limits: {by-plan: {limit: 10, window_s: 60, per: [api_key]}}")
    found = difference(production, plan)
    apply_plan(environment=production, plan=plan, expected_revision=found.revision, reason=WHY, actor=ada)
    new = SubjectLimit.objects.filter(name__in=["typed", "by-api", "by-plan"])
    assert list(new.values_list("failure_policy", flat=True)) == ["local_share"] * 3
    edits.set_subject_limit(
        environment=production, name="typed", failure_policy="fail_closed", reason=WHY, actor=ada
    )
    edits.set_subject_limit(environment=production, name="typed", limit=9, reason=WHY, actor=ada)
    assert SubjectLimit.objects.get(name="typed").failure_policy == "fail_closed"


def test_a_new_quota_fails_open_wherever_it_comes_from(ada: Any) -> None:
    edits.create_environment(environment="staging", reason=WHY, actor=ada)
    shipped = TierQuota.objects.filter(tier__environment="staging")
    assert set(shipped.values_list("failure_policy", flat=True)) == {"fail_open"}
    edits.create_tenant(environment="staging", tenant="acme", tier="pro", reason=WHY, actor=ada)
    edits.set_tenant_quota(
        environment="staging",
        tenant="acme",
        quota="exports",
        limit=5,
        window_s=60,
        expected_version=None,
        reason=WHY,
        actor=ada,
    )
    assert TenantQuota.objects.get(name="exports").failure_policy == "fail_open"
    assert TemplateForm()["failure_policy"].value() == "fail_open"


def test_a_limit_that_follows_a_template_has_no_default(production: str, ada: Any) -> None:
    """A new one gets the template's values, so the template is the row that differs."""
    common: dict[str, Any] = {"environment": production, "reason": WHY, "actor": ada}
    before = differing_rows(production, most=500)
    columns: dict[str, Any] = {"limit": 9, "window_s": 60, "failure_policy": "local_share"}
    for name in ("standard", "login"):
        edits.set_template(template=name, expected_version=0, **columns, **common)
    edits.set_tier_quota(tier="pro", quota="exports", expected_version=None, template="standard", **common)
    assert TierQuota.objects.get(name="exports").failure_policy == "local_share"
    after = differing_rows(production, most=500)
    assert after.count == before.count + 1
    [added] = set(after.rows) - set(before.rows)
    # A template that has the usual values of its name was not made by an older version.
    assert (added.kind, added.name, added.value, added.new) == (
        *("template", "standard", "local_share", "fail_open"),
    )
    rows = send(token_of("viewer"), "GET", f"{API}/configuration/older-defaults").json()["rows"]
    assert ("template", "standard") in {(row["kind"], row["name"]) for row in rows}


def test_admins_see_which_rows_differ(production: str, ada: Any) -> None:
    before = {(row.kind, row.name, row.limit) for row in differing_rows(production, most=500).rows}
    old_rows(ada)
    added = [
        row
        for row in differing_rows(production, most=500).rows
        if (row.kind, row.name, row.limit) not in before
    ]
    assert [(row.kind, row.name, row.limit, row.field, row.value, row.new) for row in added] == [
        ("dependency", "ledger", "", "slow_percent", "100", "50"),
        ("environment", production, "logins", "failure_policy", "fail_open", "local_share"),
        ("tier", "pro", "requests", "failure_policy", "local_share", "fail_open"),
    ]
    answer = send(token_of("viewer"), "GET", f"{API}/configuration/older-defaults?limit=1").json()
    assert answer["count"] == len(before) + 3
    assert len(answer["rows"]) == 1


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "Pods allow every call, also beyond 1,000."),
        ({"failure_policy": "fail_closed"}, "Pods refuse every call."),
        ({"failure_policy": "local_share"}, "Each of 20 pods allows 50 of 1,000."),
        ({"failure_policy": "reserved"}, "All pods together allow 100 of 1,000; with Redis, 900."),
        ({"failure_policy": "reserved", "window_s": 3600}, "Pods refuse every call: nothing is reserved"),
        ({"shadow": True, "failure_policy": "fail_closed"}, "Pods allow every call: the limit only counts."),
    ],
)
def test_a_form_says_what_the_limit_allows_without_redis(columns: dict[str, Any], words: str) -> None:
    row = TenantQuota(name="requests")
    set_columns(row, {"limit": 1000, "window_s": 60} | columns)
    found: Limit = limit_of(row)
    assert without_redis(found, pods=20, tuning=Tuning()).startswith(words)


@pytest.mark.parametrize(
    ("columns", "most"),
    [
        ({}, False),
        ({"failure_policy": "fail_closed"}, True),
        ({"failure_policy": "fail_closed", "shadow": True}, False),
        ({"failure_policy": "local_share"}, False),
        ({"failure_policy": "local_share", "limit": 19}, True),
        ({"failure_policy": "local_share", "limit": 0}, True),
        ({"failure_policy": "reserved"}, False),
        ({"failure_policy": "reserved", "limit": 100}, True),
        ({"failure_policy": "reserved", "window_s": 3600}, True),
        (
            {
                "failure_policy": "reserved",
                "algorithm": "fixed_window",
                "period": "day",
                "window_s": 86_400,
            },
            False,
        ),
        # Each pod allows at least one call.
        (
            {
                "failure_policy": "local_share",
                "algorithm": "fixed_window",
                "period": "day",
                "window_s": 86_400,
                "limit": 5,
            },
            False,
        ),
    ],
)
def test_a_form_warns_of_a_limit_that_refuses_most_without_redis(columns: dict[str, Any], most: bool) -> None:
    row = TenantQuota(name="requests")
    set_columns(row, {"limit": 1000, "window_s": 60} | columns)
    assert refuses_most(limit_of(row), pods=20, tuning=Tuning()) is most


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"limit": 19, "failure_policy": "local_share"},
            "Each of 20 pods allows 1 call every 189 s (share of 19), all together about a third of the"
            " limit.",
        ),
        (
            {"limit": 5, "algorithm": "fixed_window", "period": "day", "failure_policy": "local_share"},
            "Pods divide what was left of 5 when Redis last answered.",
        ),
        (
            {"limit": 100, "failure_policy": "reserved"},
            "All pods together allow 10 of 100; with Redis, 90. A pod without a reserved share refuses."
            " Nearly every call is refused then.",
        ),
        ({"limit": 100, "failure_policy": "fail_closed"}, "Pods refuse every call."),
    ],
)
def test_a_form_says_how_much_passes_without_redis(
    production: str, columns: dict[str, Any], words: str
) -> None:
    typed = {"window_s": 86_400 if "period" in columns else 60} | columns
    assert outage_words(production, typed, pods=20)[0] == words


def test_a_plan_warns_about_breakers_that_are_seldom_meant(production: str, ada: Any) -> None:
    token = token_of("admin")
    hasty = "dependencies: {ledger: {kind: database, breaker: {consecutive_failures: 1, open_ms: 5000}}}"
    planned = send(token, "POST", f"{API}/plan", hasty).json()
    assert planned["advice"] == [
        "dependency ledger: opens after 1 failure in a row: a single failed call opens the breaker."
        " Use 3 to 5.",
        "dependency ledger: open time is 5,000 ms: the dependency has little time to recover."
        " Use at least 30,000 ms.",
        "dependency ledger: what callers do is not described: write what they do while the breaker is open.",
    ]
    assert "warning: dependency ledger: open time is 5,000 ms" in planned["text"]
    good = "dependencies: {ledger: {kind: database, fallback_note: Last known rate}}"
    assert send(token, "POST", f"{API}/plan", good).json()["advice"] == []
    edits.create_dependency(
        environment=production, dependency="ledger", kind="database", reason=WHY, actor=ada
    )
    [text] = send(token, "GET", f"{API}/dependencies/ledger").json()["advice"]
    assert text.startswith("what callers do is not described")
