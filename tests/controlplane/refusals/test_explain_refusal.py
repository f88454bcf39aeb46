"""A token explained: the rule then and now, who changed it since, and everything that is not known."""

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from django.db import connection
from django.utils import timezone

from controlplane.breakers.models import Transition
from controlplane.editing import edits
from controlplane.fleet.models import Event
from controlplane.policies.models import Dependency, Environment, Revision
from controlplane.refusals.explain import explain
from controlplane.refusals.keys import day_at, key_of
from controlplane.refusals.models import RefusalService
from controlplane.refusals.tries import MAX_TRIES
from controlplane.refusals.words import REASONS, limit_words, reason_words, wait_words
from controlplane.series.models import Writer
from controlplane.status import refusals
from fuseboard.contract.refusal_token import TokenContent, make_token
from fuseboard.contract.words import Mode, Reason
from tests.controlplane.calling import API, problem, send, token_of

WHY = {"environment": "production", "reason": "raised for launch"}


@pytest.fixture
def now(production):
    RefusalService.objects.create(environment=production, service="shop", last_on=timezone.now().date())
    return timezone.now()


def head():
    return Environment.objects.get(pk="production").revision


def token(now, *, environment="production", **fields):
    key = key_of(environment, "shop", day_at(now.timestamp()))
    usual = TokenContent(
        at_ms=int(now.timestamp() * 1000),
        number=7,
        revision=head(),
        reason=Reason.QUOTA,
        mode=Mode.SHARED,
        rule="requests",
        tenant="acme",
        server="shop-2",
        retry_after_ms=12_400,
    )
    return make_token(key, msgspec.structs.replace(usual, **fields))


def explained(text, now, **more):
    return explain(text, {"production"}, now, **more)


@pytest.mark.parametrize("tenant", ["acme", ""])
def test_a_limit_of_all_callers_is_named_whoever_was_refused(now, ada, tenant):
    edits.set_subject_limit(**WHY, actor=ada, name="flood", limit=100, window_s=60, service="*")
    edits.set_subject_limit(**WHY, actor=ada, name="requests", limit=5, window_s=60, per=["ip"])
    found = explained(token(now, rule="*/flood", tenant=tenant), now)
    assert (found.rule.kind, found.rule.limit) == ("subject_limit", "flood")
    assert found.headline == 'Refused by limit "flood" of all callers: the quota was spent.'
    assert found.then.limit


def test_the_limit_of_a_rule_for_envoy_is_named(now, ada):
    """Its name can be that of a quota, which refuses no caller without a tenant."""
    rates = "".join(
        f"  - {{key: {name}, rate_limit: {{unit: hour, requests_per_unit: 5, name: {name}}}}}\n"
        for name in ("requests", "slow")
    )
    file = f"domain: edge\ndescriptors:\n{rates}"
    common = {"domain": "edge", "expected_version": None, "actor": ada, **WHY}
    edits.set_descriptors(file=file, **common)
    texts = [token(now, rule=rule, tenant=tenant) for rule, tenant in (("requests", ""), ("slow", "acme"))]
    edits.remove_descriptors(**common)
    for text, name in zip(texts, ("requests", "slow"), strict=True):
        found = explained(text, now)
        assert (found.rule.kind, found.rule.limit) == ("descriptors", name)
        assert found.headline == f'Refused by limit "{name}" of a rule for Envoy: the quota was spent.'
    assert explained(token(now), now).rule.kind == "quota"


def test_a_quota_of_the_tier_is_named_with_its_limit_then_and_the_same_now(now):
    found = explained(token(now), now)
    assert (found.environment, found.service, found.tenant.name) == ("production", "shop", "acme")
    assert (found.tenant.state, found.then.tier) == ("registered", "pro")
    assert (found.rule.kind, found.rule.limit) == ("quota", "requests")
    assert (found.then.kind, found.then.name) == ("tier", "pro")
    assert found.then.limit
    assert found.then.limit == found.now.limit
    assert found.changes == []
    assert found.headline == 'Refused by quota "requests" of tier pro: the quota was spent.'
    text = " ".join(found.sentences)
    assert "Tenant acme, in tier pro then." in text
    assert "Now: the same." in text
    assert "Asking again was possible after 12.4 s." in text
    assert "decided by Redis" in text


def test_without_redis_the_share_of_the_pod_was_spent_and_not_the_limit(now):
    found = explained(token(now, mode=Mode.LOCAL), now)
    limit = found.then.limit.split(", burst")[0]
    rule = 'Refused by quota "requests" of tier pro'
    assert found.headline == f"{rule}: this pod's local share of {limit}, was spent."
    of_four = replace(found, pods=4)
    assert (
        of_four.headline
        == f"{rule}: this pod's local share, about {found.then.most // 4} of {limit}, was spent."
    )
    assert of_four.line_per_s == found.then.per_s / 4
    assert (
        replace(found, pods=10**9).headline
        == f"{rule}: this pod's local share, less than 1 of {limit}, was spent."
    )
    # Decisions of Redis are exact, whatever the number of pods.
    with_redis = replace(explained(token(now), now), pods=4)
    assert with_redis.headline == f"{rule}: the quota was spent."
    assert with_redis.line_per_s == with_redis.then.per_s


def test_a_raised_limit_stands_beside_the_old_one_with_who_raised_it_and_why(now, ada):
    edits.set_tenant_quota(
        tenant="acme", quota="requests", limit=600, window_s=60, actor=ada, expected_version=None, **WHY
    )
    text, then = token(now), head()
    edits.set_tenant_quota(
        tenant="acme", quota="requests", limit=900, window_s=60, actor=ada, expected_version=None, **WHY
    )
    edits.suspend_tenant(tenant="acme", actor=ada, **WHY)
    found = explained(text, now)
    assert (found.then.revision, found.then.kind, found.then.name) == (then, "tenant", "acme")
    assert found.then.limit.startswith("600 calls per min")
    assert found.now.limit.startswith("900 calls per min")
    (change,) = found.changes
    assert (change.revision, change.by, change.reason) == (then + 1, "ada", "raised for launch")
    assert change.fields["quotas.requests.limit"] == (600, 900)
    said = " ".join(found.sentences)
    assert "Then: 600 calls per min" in said
    assert f'by ada, "raised for launch" (revision {then + 1})' in said
    assert not found.then.suspended
    assert found.now.suspended


def test_a_tenant_that_moved_to_another_tier_has_the_rule_of_the_old_tier_then(now, ada):
    text = token(now)
    edits.change_tier(tenant="acme", tier="enterprise", expected_version=None, actor=ada, **WHY)
    found = explained(text, now)
    assert (found.then.name, found.then.tier) == ("pro", "pro")
    assert (found.now.name, found.now.tier) == ("enterprise", "enterprise")
    assert [change.fields for change in found.changes] == [{"tier": ("pro", "enterprise")}]


def test_a_rule_and_a_tenant_that_were_removed_since_are_still_named(now, ada):
    edits.set_tenant_quota(
        tenant="acme", quota="exports", limit=5, window_s=60, actor=ada, expected_version=None, **WHY
    )
    text = token(now, rule="exports")
    edits.remove_tenant(tenant="acme", expected_version=None, actor=ada, **WHY)
    found = explained(text, now)
    assert (found.tenant.name, found.tenant.state) == ("acme", "removed")
    assert found.then.limit.startswith("5 calls per min")
    assert found.now.limit == ""
    assert "Now: the rule does not exist" in " ".join(found.sentences)


def test_an_inherited_quota_is_found_at_the_parent(now, ada):
    edits.create_tenant(tenant="acme/shop", tier="pro", parent="acme", actor=ada, **WHY)
    found = explained(token(now, tenant="acme/shop", rule="acme/requests"), now)
    assert (found.tenant.name, found.rule.owner, found.rule.limit) == ("acme/shop", "acme", "requests")
    assert found.then.limit


def test_a_vendor_limit_a_breaker_and_the_pods_own_protection_are_named(now, ada):
    found = explained(token(now, dependency="openai", rule="openai", reason=Reason.BREAKER_OPEN), now)
    assert (found.rule.kind, found.then.kind, found.then.name) == ("dependency", "dependency", "openai")
    assert found.headline == "Refused by dependency openai: the circuit breaker was open."
    assert found.transition is None
    dependency = Dependency.objects.get(name="openai")
    for generation, ago in ((1, 60), (2, 20)):
        Transition.objects.create(
            dependency=dependency,
            generation=generation,
            at=now - timezone.timedelta(seconds=ago),
            from_state="closed",
            to_state="open",
            cause="ratio",
        )
    found = explained(token(now, dependency="openai", rule="openai", reason=Reason.BREAKER_OPEN), now)
    assert found.transition.generation == 2
    shed = explained(token(now, rule="queue", reason=Reason.SHED), now)
    assert shed.headline == "Refused by the pod: the pod was overloaded (its queue was full)."
    gone = explained(token(now, rule="suspended", reason=Reason.SUSPENDED), now)
    assert gone.headline == "Refused by the suspension of the tenant: the tenant was suspended."


@pytest.fixture
def budgets(now, ada):
    """An account with one pool, a tier, and a tenant whose own budget replaces that of the tier."""
    common = {"actor": ada, "expected_version": None, **WHY}
    edits.set_account(account="main", pools=["openai"], hosts=[], **common)
    month = {"amount": 50_000_000, "period": "month", "time_zone": "America/New_York"}
    edits.set_budget(budget="main-month", account="main", **month, **common)
    edits.set_budget(
        budget="openai-hour", dependency="openai", amount=900, measure="tokens", period="hour", **common
    )
    edits.set_budget(budget="pro-day", tier="pro", amount=5_000_000, period="day", **common)
    edits.set_budget(
        budget="acme-day", tenant="acme", amount=900_000, period="day", instead_of="pro-day", **common
    )
    edits.create_tenant(tenant="globex", tier="pro", actor=ada, **WHY)
    edits.create_tenant(tenant="acme/shop", tier="pro", parent="acme", actor=ada, **WHY)
    return common


@pytest.mark.parametrize(
    ("refused", "title"),
    [
        ({"dependency": "openai", "rule": "main/budget:main-month"}, "main-month"),
        ({"dependency": "openai", "rule": "budget:openai-hour"}, "openai-hour"),
        ({"rule": "budget:pro-day"}, "acme-day"),
        ({"rule": "budget:pro-day", "tenant": "globex"}, "pro-day"),
        ({"rule": "budget:pro-day", "tenant": "globex", "dependency": "openai"}, "pro-day"),
        ({"rule": "acme/budget:pro-day", "tenant": "acme/shop"}, "acme-day"),
    ],
)
def test_a_budget_is_named_with_what_is_left_and_its_end(now, budgets, refused, title):
    text = token(now, reason=Reason.BUDGET_SPENT, **refused)
    found = refusals.explained(text, {"production"}, now)
    assert (found.rule.kind, found.rule.limit) == ("budget", title)
    assert found.headline == f'Refused by budget "{title}": the budget was spent.'
    assert (found.then.kind, found.then.name) == ("budget", title)
    assert found.then.limit == found.now.limit
    assert found.left.spent == 0, "nothing was counted here"
    assert found.left.ends > now
    assert f"Now: {found.left.words}." in found.sentences


def test_the_budget_of_a_caller_that_is_not_registered_is_named(now, budgets):
    found = refusals.explained(token(now, rule="budget:pro-day", tenant="a stranger"), {"production"}, now)
    assert (found.rule.kind, found.rule.limit, found.left) == ("budget", "pro-day", None)


def test_a_budget_that_was_raised_since_says_who_and_why(now, budgets, ada):
    text = token(now, reason=Reason.BUDGET_SPENT, rule="budget:pro-day")
    edits.set_budget(budget="acme-day", amount=1_800_000, **budgets)
    found = refusals.explained(text, {"production"}, now)
    assert found.then.limit.startswith("0.90 USD per day in UTC")
    assert found.now.limit.startswith("1.80 USD per day in UTC")
    (change,) = found.changes
    assert change.fields == {"amount": (900_000, 1_800_000)}
    assert found.left.words.startswith("1.80 USD of 1.80 USD left until ")
    edits.remove_budget(budget="acme-day", **budgets)
    found = refusals.explained(text, {"production"}, now)
    assert (found.left, found.now.limit) == (None, "")


def test_an_account_that_its_vendor_did_not_serve_is_named(now, budgets):
    found = explained(token(now, reason=Reason.COOLING_DOWN, dependency="openai", rule="main"), now)
    assert found.headline == "Refused by account main: its vendor did not serve it."
    assert (found.then.kind, found.then.name, found.changes) == ("account", "main", [])


def test_the_api_says_what_is_left_of_a_budget(now, budgets, call):
    text = token(now, reason=Reason.BUDGET_SPENT, rule="budget:pro-day")
    left = call("viewer", "POST", PATH, {"token": text}).json()["left"]
    assert (left["measure"], left["amount"], left["spent"]) == ("micro_usd", 900_000, 0)
    assert call("viewer", "POST", PATH, {"token": token(now)}).json()["left"] is None


def test_a_caller_without_a_tenant_and_an_invalid_id_are_said(now):
    assert explained(token(now, tenant=""), now).tenant.state == "none"
    assert explained(token(now, tenant="(invalid)"), now).tenant.state == "invalid"


def test_an_unregistered_caller_is_found_if_the_reader_names_it(now):
    text = token(now, tenant="stranger-7")
    found = explained(text, now)
    assert (found.tenant.name, found.tenant.state) == ("", "unknown")
    # The default tier decides about it.
    assert found.then.kind == "tier"
    assert explained(text, now, tenant="stranger-8").tenant.state == "unknown"
    assert explained(text, now, tenant="stranger-7").tenant == type(found.tenant)(
        "stranger-7", "unregistered"
    )


def test_the_pod_is_found_also_after_it_left(now):
    text = token(now)
    assert explained(text, now).pod == ""
    Event.objects.create(environment="production", server="shop-2", boot="b" * 8, kind="left")
    assert explained(text, now).pod == "shop-2"


def test_a_rule_and_a_revision_that_are_not_known_are_said(now):
    found = explained(token(now, rule="never seen", revision=9_999), now)
    assert found.rule is None
    assert not found.known_revision
    assert found.headline == "Refused by a rule that is not known any more: the quota was spent."
    assert "Revision 9999 is not in the history" in " ".join(found.sentences)


def test_every_reason_has_words():
    assert set(REASONS) == set(Reason)
    assert reason_words(None) == "unknown"
    assert wait_words(300) == "300 ms"
    concurrency = {"algorithm": "concurrency", "limit": 20, "window_s": 60}
    assert limit_words(concurrency) == "20 calls at once"
    assert limit_words(None) == ""


# The API

PATH = f"{API}/refusals/explain"


def test_the_api_explains_a_token_in_words_and_data(now, call):
    answer = call("viewer", "POST", PATH, {"token": token(now)})
    assert answer.status_code == 200, answer.content
    found = answer.json()
    assert found["rule"] == {"name": "requests", "kind": "quota", "dependency": ""}
    assert (found["tenant"], found["tenant_state"], found["reason"]) == ("acme", "registered", "quota")
    assert found["then"]["revision"] == head()
    assert found["then"]["limit"] == found["now"]["limit"]
    assert found["sentences"][0].endswith(found["headline"])
    urn = call("viewer", "POST", PATH, {"token": f"urn:fuseboard:refusal:{token(now)}"})
    assert urn.json()["headline"] == found["headline"]


def test_the_api_refuses_forged_expired_and_foreign_tokens(now, call):
    problem(call("viewer", "POST", PATH, {"token": "fr1." + "A" * 72}), 404)
    problem(call("viewer", "POST", PATH, {"token": token(now)[:-3]}), 404)
    old = now - timezone.timedelta(days=31)
    key = key_of("production", "shop", day_at(old.timestamp()))
    expired = make_token(
        key,
        TokenContent(
            at_ms=int(old.timestamp() * 1000), number=1, revision=1, reason=None, mode=Mode.SHARED, rule="x"
        ),
    )
    assert "expired" in problem(call("viewer", "POST", PATH, {"token": expired}), 410)["detail"]
    problem(call("viewer", "POST", PATH, {"token": "x" * 301}), 422)


def test_rights_are_those_of_the_environment(now, ada):
    """A token of another environment answers exactly like a forged one."""
    edits.create_environment(environment="staging", reason="for a test", actor=ada)
    RefusalService.objects.create(environment="staging", service="shop", last_on=now.date())
    elsewhere = token_of("admin", environment="staging")
    text = token(now)
    problem(send(elsewhere, "POST", PATH, {"token": text}), 403)
    there = "/api/v1/staging/refusals/explain"
    assert problem(send(elsewhere, "POST", there, {"token": text}), 404) == problem(
        send(elsewhere, "POST", there, {"token": "fr1." + "A" * 72}), 404
    )
    staged = token(now, environment="staging", revision=1)
    assert send(elsewhere, "POST", there, {"token": staged}).status_code == 200


def test_the_twenty_first_try_within_a_minute_is_refused(now, call):
    """Good and bad tries count, those of another caller do not."""
    for number in range(MAX_TRIES):
        body = {"token": token(now) if number % 2 else "fr1."}
        assert call("viewer", "POST", PATH, body).status_code == (200 if number % 2 else 404)
    answer = call("viewer", "POST", PATH, {"token": token(now)})
    assert "20 tokens per minute" in problem(answer, 429)["detail"]
    assert answer["Retry-After"] == "60"
    assert call("admin", "POST", PATH, {"token": token(now)}).status_code == 200
    assert Revision.objects.count() == head()


def test_the_share_is_of_the_most_pods_of_ten_minutes_before_and_of_none_after(now):
    """It was of those within a minute, but a pod that went away has its share for ten."""
    writer = Writer.objects.create(gateway="g1", environment="production", started_at=now).pk
    for seconds, heard in ((-660, 50), (-540, 20), (-30, 10), (30, 40)):
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO series_span VALUES (%s, %s, 10000, %s, %s, 0)",
                [now + timedelta(seconds=seconds), writer, heard, heard],
            )
    text = token(now, mode=Mode.LOCAL)
    assert refusals.explained(text, {"production"}, now).pods == 20
