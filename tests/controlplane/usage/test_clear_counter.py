"""A person clears a counter: the next call finds it empty, and the audit says who did it and why."""

from typing import Any

import msgspec
import pytest
import redis

from controlplane.audit.models import Entry as Entry
from controlplane.editing import edits
from controlplane.errors import OTHERS_EDIT, InvalidEdit, NotFound
from controlplane.usage.clear_counter import clear_counter
from fuseboard.contract import keys
from fuseboard.contract.policy import Tier
from fuseboard.subject import Subject
from tests.agents.servers import POLICY, REQUESTS, Server, configured, running
from tests.controlplane.calling import API, problem
from tests.controlplane.repricing.books import someone_corrects
from tests.waiting import eventually

WHY = {"environment": "production", "reason": "ticket 4711"}


@pytest.fixture
def clear(production: str, ada: Any, settings: Any, redis_url: str) -> Any:
    settings.REDIS_URL = redis_url

    def clear(limit: str, /, **about: Any) -> bool:
        return clear_counter(**WHY, actor=ada, limit=limit, **about)

    return clear


@pytest.fixture
def edit(production: str, ada: Any) -> Any:
    def edit(name: str, /, **values: Any) -> None:
        usual = {"limit": 60, "window_s": 60}
        getattr(edits, name)(**WHY, actor=ada, **usual, **values)

    return edit


def count(limits: redis.Redis, key: str) -> None:
    limits.set(key, b"spent")


def test_every_kind_of_counter_is_found(clear: Any, edit: Any, limits: redis.Redis) -> None:
    edit("set_tier_quota", tier="pro", quota="mails", dependency="openai", expected_version=None)
    edit("set_tier_quota", tier="pro", quota="logins", per=["user", "ip"], expected_version=None)
    edit("set_subject_limit", name="addresses", per=["ip"])
    edit("set_subject_limit", name="flood", service="*")
    edit("set_vendor_limit", dependency="openai", name="contract", expected_version=None)
    address = keys.values_digest(("ip=2001:db8:0:1::/64",))
    for key, limit, about in (
        (keys.tenant_quota("production", "acme", "requests"), "requests", {"tenant": "acme"}),
        (keys.tenant_quota("production", "acme", "logins", "ann", "192.0.2.7"), "logins",
         {"tenant": "acme", "values": {"user": "ann", "ip": "192.0.2.007"}}),
        (keys.dependency_quota("production", "openai", "acme", "mails"), "mails",
         {"tenant": "acme", "dependency": "openai"}),
        (keys.vendor_limit("production", "openai", "contract"), "contract", {"dependency": "openai"}),
        (keys.subject_limit("production", address, "addresses"), "addresses",
         {"values": {"ip": "2001:db8:0:1::7"}}),
        (keys.service_limit("production", "flood"), "flood", {}),
    ):  # fmt: skip
        count(limits, key)
        assert clear(limit, **about), key
        assert not limits.exists(key)
        assert not clear(limit, **about), "it was empty already"


def test_a_quota_of_a_team_is_counted_at_its_organisation(clear: Any, limits: redis.Redis, ada: Any) -> None:
    for key, parent in (("org", ""), ("team", "org"), ("ann", "team")):
        edits.create_tenant(**WHY, actor=ada, tenant=key, tier="pro", parent=parent)
    key = keys.member_quota("production", "org", "ann", "requests")
    count(limits, key)
    assert clear("requests", tenant="ann")
    assert not limits.exists(key)


def test_the_counter_of_every_budget_is_found(clear: Any, limits: redis.Redis, ada: Any) -> None:
    amount: dict[str, Any] = {"amount": 5, "period": "day", "expected_version": 0}
    edits.set_account(**WHY, actor=ada, account="main", pools=["openai"], expected_version=0)
    for budget, owner in (
        ("main-day", {"account": "main"}),
        ("calls-day", {"dependency": "openai"}),
        ("pro-day", {"tier": "pro"}),
        ("free-day", {"tier": "free"}),
        ("acme-day", {"tenant": "acme"}),
    ):
        edits.set_budget(**WHY, actor=ada, budget=budget, **amount, **owner)
    for key, budget, about, entry in (
        (keys.account_budget("production", "main", "main-day"), "main-day", {}, ("account", "main")),
        (keys.dependency_budget("production", "openai", "calls-day"), "calls-day", {},
         ("dependency", "openai")),
        (keys.tenant_budget("production", "acme", "pro-day"), "pro-day", {"tenant": "acme"},
         ("tenant", "acme")),
        (keys.tenant_budget("production", "acme", "acme-day"), "acme-day", {}, ("tenant", "acme")),
        (keys.tenant_budget("production", "acme", "acme-day"), "acme-day", {"tenant": "acme"},
         ("tenant", "acme")),
    ):  # fmt: skip
        count(limits, key)
        assert clear("", budget=budget, **about), key
        assert not limits.exists(key)
        made = Entry.objects.filter(action="counter.cleared").latest("pk")
        assert (made.target_kind, made.target_name) == entry
        assert (made.after["budget"], made.after["counted"]) == (budget, True)
    for budget, about, said in (
        ("pro-day", {}, "each tenant of tier pro: enter one"),
        ("free-day", {"tenant": "acme"}, "does not apply to it"),
        ("main-day", {"tenant": "acme"}, "leave this empty"),
        ("main-day", {"dependency": "openai"}, "leave this empty"),
    ):
        with pytest.raises(InvalidEdit, match=said):
            clear("", budget=budget, **about)
    with pytest.raises(InvalidEdit, match="not both"):
        clear("requests", budget="pro-day", tenant="acme")
    with pytest.raises(NotFound):
        clear("", budget="no-such")


def test_what_cannot_be_cleared_is_refused_with_the_next_step(clear: Any, edit: Any) -> None:
    edit("set_subject_limit", name="addresses", per=["ip"])
    edit("set_tier_quota", tier="pro", quota="running", algorithm="concurrency", expected_version=None)
    for limit, about, said in (
        ("running", {"tenant": "acme"}, "free when the calls end"),
        ("requests", {"tenant": "a\nb"}, "without control characters"),
        ("requests", {"tenant": "a" * 201}, "1 to 200 characters"),
        ("addresses", {}, "enter this value"),
        ("addresses", {"values": {"ip": "192.0.2.7", "user": "ann"}}, "does not count by this"),
    ):
        with pytest.raises(InvalidEdit, match=said):
            clear(limit, **about)
    for limit, about in (("no-such", {"tenant": "acme"}), ("no-such", {"dependency": "nothing"}), ("no", {})):
        with pytest.raises(NotFound):
            clear(limit, **about)


def test_the_audit_names_the_limit_and_never_the_caller(clear: Any, edit: Any) -> None:
    edit("set_subject_limit", name="addresses", per=["ip"])
    clear("addresses", values={"ip": "192.0.2.7"})
    entry = Entry.objects.latest("pk")
    assert (entry.action, entry.reason) == ("counter.cleared", "ticket 4711")
    assert entry.after == {"limit": "addresses", "counted": False, "per": "ip"}
    assert "192.0.2.7" not in str(vars(entry))


def test_without_redis_nothing_is_written_and_the_answer_says_so(
    call: Any, settings: Any, production: str
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1"
    cleared = Entry.objects.filter(action="counter.cleared")
    body = {"tenant": "acme", "limit": "requests", "reason": "ticket 4711"}
    answer = call("operator", "POST", f"{API}/counters/clear", body)
    assert (answer.status_code, cleared.count()) == (503, 0)


async def test_a_refused_tenant_passes_again(limits: redis.Redis, redis_url: str) -> None:
    # Without the person, the next call passes after a minute.
    slow = msgspec.structs.replace(REQUESTS, window_ms=3_600_000)
    policy = msgspec.structs.replace(POLICY, tiers=(Tier(name="free", quotas=(slow,)),))
    async with running(redis_url, configuration=configured(policy)) as server:

        async def passes(server: Server = server) -> bool:
            return (await server.admission.admit_request("acme", subject=Subject())).allowed

        while await passes():
            pass
        limits.delete(keys.tenant_quota("production", "acme", "requests"))
        await eventually(passes)


def test_the_api_refuses_a_clear_that_waits_for_another_edit(call: Any, clear: Any, ada: Any) -> None:
    edits.set_account(**WHY, actor=ada, account="main", pools=["openai"], expected_version=0)
    amount: dict[str, Any] = {"amount": 5, "period": "day", "expected_version": 0}
    edits.set_budget(**WHY, actor=ada, budget="main-day", account="main", **amount)
    with someone_corrects():
        answer = call(
            "admin", "POST", f"{API}/counters/clear", {"budget": "main-day", "reason": "ticket 4711"}
        )
    document = problem(answer, 409)
    assert (document["type"], document["detail"]) == ("urn:fuseboard:problem:others-edit", OTHERS_EDIT)
    assert answer["Retry-After"] == "1"
    assert not Entry.objects.filter(action="counter.cleared").exists()
