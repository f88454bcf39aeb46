"""What is left of the limits of a descriptor, as pods have spent them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis

from controlplane.editing import edits
from controlplane.policies.document import environment_of, policy_of, tenant_records
from controlplane.status.descriptor_limits import DescriptorLimits, descriptor_limits
from fuseboard.admission.joint_admission import OwnLimit, Wanted
from fuseboard.contract.descriptor_file import read_file
from fuseboard.contract.descriptors import DescriptorRules, Entry, Match, counted_key
from fuseboard.subject import NO_SUBJECT, Subject, costs_of
from tests.agents.servers import Server, configured, running

pytestmark = pytest.mark.django_db(transaction=True)

WHY: dict[str, Any] = {"environment": "production", "reason": "ticket 4711"}
FILE = """
domain: edge
descriptors:
  - key: tenant
    means: tenant
    descriptors:
      - {key: remote_address, means: ip}
      - {key: pool, dependency: openai}
  - {key: tokens_of, means: tenant, measure: tokens}
  - {key: remote_address, means: ip}
  - {key: pool, dependency: openai, measure: tokens}
  - {key: pool_used, dependency: openai, measure: tokens, charge: after}
  - {key: slow, rate_limit: {unit: hour, requests_per_unit: 10, name: calm}}
  - {key: brisk, rate_limit: {unit: minute, requests_per_unit: 9}}
  - {key: never, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
"""


def match(*entries: Entry) -> Match:
    domain = read_file(FILE).domain
    assert domain is not None
    [found] = DescriptorRules([domain]).match("edge", [entries])
    return found


def left(*entries: Entry) -> DescriptorLimits:
    return descriptor_limits("production", "edge", match(*entries))


def lines(*entries: Entry) -> dict[str, tuple[int | None, int]]:
    return {f"{one.kind} {one.owner} {one.name}": (one.left, one.whole) for one in left(*entries).limits}


@pytest.fixture
def spend(
    production: str, ada: Any, settings: Any, redis_url: str, limits: redis.Redis
) -> Callable[..., None]:
    """Ask a pod with the configuration of Postgres."""
    settings.REDIS_URL = redis_url

    def spend(*calls: Callable[[Server], Coroutine[Any, Any, Any]]) -> None:
        policy, records = policy_of(environment_of(production)), tenant_records(production)
        tenants = {key: record for key, record in records.items() if record is not None}

        async def run() -> None:
            async with running(redis_url, configuration=configured(policy, tenants=tenants)) as server:
                for call in calls:
                    await call(server)

        asyncio.run(run())

    return spend


def edit(name: str, ada: Any, /, **values: Any) -> None:
    getattr(edits, name)(**WHY, actor=ada, **{"limit": 60, "window_s": 3_600, "burst": 60, **values})


def test_a_tenant_has_what_its_quotas_and_those_of_its_parents_leave(spend: Any, ada: Any) -> None:
    for key, parent in (("org", ""), ("team", "org")):
        edits.create_tenant(**WHY, actor=ada, tenant=key, tier="pro", parent=parent)
    edit("set_tier_quota", ada, tier="pro", quota="requests", expected_version=None)
    edit("set_tier_quota", ada, tier="pro", quota="by-ip", per=["ip"], expected_version=None)
    edit("set_tier_quota", ada, tier="pro", quota="mails", dependency="openai", expected_version=None)
    edit("set_tenant_quota", ada, tenant="team", quota="requests", limit=50, burst=50, expected_version=None)
    spend(lambda server: server.admission.admit_request("team", 7, subject=Subject(ip="192.0.2.1")))
    found = lines(("tenant", "team"), ("remote_address", "192.0.2.1"))
    assert found == {
        "tenant team requests": (43, 50),
        "tier pro requests": (53, 60),
        "tier pro by-ip": (53, 60),
    }
    assert "tier pro by-ip" not in lines(("tenant", "team"))
    assert lines(("tenant", "team"), ("remote_address", "192.0.2.9"))["tier pro by-ip"] == (60, 60)
    assert "tier pro mails" in lines(("tenant", "team"), ("pool", "openai"))


def test_callers_without_a_tenant_have_limits_of_callers(spend: Any, ada: Any) -> None:
    edit("set_subject_limit", ada, name="addresses", per=["ip"])
    edit("set_subject_limit", ada, name="logins", per=["user"])
    edit("set_subject_limit", ada, name="flood", service="*")
    spend(lambda server: server.admission.admit_request("", 4, subject=Subject(ip="2001:db8:0:1::/64")))
    assert lines(("remote_address", "2001:db8:0:1::9")) == {
        "callers  addresses": (56, 60),
        "all callers  flood": (56, 60),
    }


def test_the_limit_of_a_rule_is_that_which_a_rate_limit_service_charges(spend: Any) -> None:
    def own(*entries: Entry) -> Callable[[Server], Coroutine[Any, Any, Any]]:
        met = match(*entries)
        assert met.rule is not None
        assert met.rule.limit is not None
        limit = OwnLimit(met.rule.limit, counted_key("edge", met))
        wanted = Wanted("", costs_of(3, None), NO_SUBJECT, limit)
        return lambda server: server.admission.joint.admit([wanted])

    spend(own(("slow", "a")), own(("brisk", "a")))
    [slow] = left(("slow", "a")).limits
    assert (slow.left, slow.whole, slow.name) == (7, 10, "calm")
    assert slow.rate == "10 per hour, in calendar hours of UTC"
    assert lines(("brisk", "a")) == {"rule  ": (6, 9)}
    assert lines(("brisk", "b")) == {"rule  ": (9, 9)}
    assert lines(("never", "a")) == {"rule  ": (0, 0)}
    assert lines(("free", "a")) == lines(("other", "a")) == {}


def test_a_dependency_has_its_vendor_limits(spend: Any, ada: Any) -> None:
    edit("set_vendor_limit", ada, dependency="openai", name="contract", burst=1, expected_version=None)
    more = {
        "dependency": "openai",
        "name": "tokens",
        "measure": "tokens",
        "burst": 1,
        "expected_version": None,
    }
    edit("set_vendor_limit", ada, **more)
    spend(lambda server: server.admission.admit_call("openai", cost=5, costs={"tokens": 9}))
    found = lines(("pool", "openai"))
    assert found["dependency openai contract"] == (55, 60)
    assert found["dependency openai tokens"] == (51, 60)
    # A charge after the work counts tokens, and no call.
    assert list(lines(("pool_used", "openai"))) == ["dependency openai tokens"]
    # Another rule counts no tokens of a call.
    assert "dependency openai tokens" not in lines(("tenant", "acme"), ("pool", "openai"))


def test_hits_that_are_tokens_are_no_calls(production: str, ada: Any) -> None:
    edit("set_tier_quota", ada, tier="pro", quota="tokens", measure="tokens", expected_version=None)
    assert "tier pro tokens" not in lines(("tenant", "acme"))
    assert list(lines(("tokens_of", "acme"))) == ["tier pro tokens"]


def test_what_decides_beside_limits_is_a_note(production: str, ada: Any) -> None:
    [note] = left(("tenant", "unknown")).notes
    assert note.startswith("The tenant is not registered")
    for invalid in ("a\x00", ""):
        found = left(("tenant", invalid))
        assert found.limits == ()
        [note] = found.notes
        assert note.startswith("No tenant can have this id")
    for invalid in ("a\x00", ""):
        [note] = left(("remote_address", invalid)).notes
        assert note.startswith("The ip cannot have a separate counter")
    edits.suspend_tenant(**WHY, actor=ada, tenant="acme")
    [note] = left(("tenant", "acme")).notes
    assert note == "The tenant is suspended: pods refuse all its requests."


def test_without_redis_nothing_is_known_of_what_is_left(production: str, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1"
    assert lines(("slow", "a")) == {"rule  calm": (None, 10)}
