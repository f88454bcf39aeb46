"""With --tenants, an application uses the tenants of these patterns alone."""

from typing import Any

import httpx
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.cli import main
from fuseboard.errors import Misconfigured
from fuseboard.reporting.token import TokenSource
from fuseboard.sidecar.access import TenantNames
from fuseboard.sidecar.app import Options
from tests.agents.servers import POLICY, REQUESTS
from tests.sidecar.conftest import Beside, Client


def options(*patterns: str) -> Options:
    # Explanations need a token.
    token = TokenSource("secret", None)
    return Options(listen=("127.0.0.1", 0), token=token, tenants=TenantNames(patterns))


async def asked(client: Client, path: str, **members: Any) -> httpx.Response:
    return await client.http.post(path, json=members, headers={"authorization": "Bearer secret"})


async def test_a_tenant_of_another_pattern_is_refused_and_nothing_is_asked(
    beside: Beside, limits: redis.Redis
) -> None:
    async with beside(POLICY, options("big", "eu-*")) as client:
        before = set(limits.scan_iter())
        for path, members in (
            ("/v1/requests", {"tenant": "acme"}),
            ("/v1/calls", {"tenant": "acme", "dependency": "payments"}),
            ("/v1/check", {"tenant": "acme"}),
            ("/v1/explain", {"tenant": "acme"}),
            # An empty name is that of no tenant, not of a caller without one.
            ("/v1/requests", {"tenant": ""}),
        ):
            answer = await asked(client, path, **members)
            assert (answer.status_code, answer.json()["type"]) == (403, "urn:fuseboard:sidecar:tenant")
        assert client.sidecar.foreign == 5
        assert client.agent.counters.requests == 0
        assert {key for key in limits.scan_iter() if b"quota" in key or b"vendor" in key} <= before
        for tenant in ("big", "eu-shop"):
            assert (await asked(client, "/v1/requests", tenant=tenant)).json()["allowed"] is True


async def test_what_belongs_to_no_tenant_is_not_restricted(beside: Beside) -> None:
    async with beside(POLICY, options("big")) as client:
        assert (await asked(client, "/v1/calls", dependency="payments")).status_code == 200
        assert (await asked(client, "/v1/requests", subject={"ip": "203.0.113.7"})).status_code == 200


@pytest.mark.parametrize("spends", [True, False])
async def test_a_call_spends_the_quota_of_its_tenant_if_it_says_so(beside: Beside, spends: bool) -> None:
    async with beside(POLICY) as client:
        call = await client.call(tenant="acme", cost=REQUESTS.burst, spend_quota=spends)
        assert call["allowed"] is True
        again = await client.call(tenant="acme", cost=REQUESTS.burst, spend_quota=spends)
        assert again.get("reason") == ("quota" if spends else None)


async def test_a_report_beside_a_refused_call_counts(beside: Beside) -> None:
    async with beside(POLICY, options("big")) as client:
        permit = (await asked(client, "/v1/calls", dependency="payments")).json()["permit"]
        reports = [{"permit": permit, "status": 500}]
        answer = await asked(client, "/v1/calls", dependency="payments", tenant="acme", reports=reports)
        assert answer.status_code == 403
        assert client.agent.counters.outcomes()["payments", "failure"] == 1


@pytest.mark.parametrize(
    ("pattern", "tenant", "is_included"),
    [
        ("acme", "acme", True),
        ("acme", "ACME", False),
        ("acme", "acme-2", False),
        ("eu-*", "eu-", True),
        ("eu-*", "neu-1", False),
        ("*-eu", "a-eu", True),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c", False),
        ("*", "acme", True),
        ("*", "", False),
        ("*", "a" * 201, False),
        ("*", "a\nb", False),
        ("a.c", "abc", False),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("a|b", "a", False),
        ("a?", "ab", False),
    ],
)
def test_only_a_star_is_special(pattern: str, tenant: str, is_included: bool) -> None:
    assert TenantNames(["no-tenant", pattern]).include(tenant) is is_included


@given(st.lists(st.text("ab*", max_size=8), min_size=1, max_size=3), st.text("ab", max_size=12))
def test_a_pattern_matches_as_its_parts_say(parts: list[str], name: str) -> None:
    """Compared with the definition: a star takes any number of letters."""

    def fits(pattern: str, rest: str) -> bool:
        if not pattern:
            return not rest
        if pattern[0] == "*":
            return fits(pattern[1:], rest) or bool(rest and fits(pattern, rest[1:]))
        return rest[:1] == pattern[0] and fits(pattern[1:], rest[1:])

    patterns = [part for part in parts if part] or ["a"]
    expected = bool(name) and any(fits(pattern, name) for pattern in patterns)
    assert TenantNames(patterns).include(name) is expected


def test_hostile_names_and_many_stars_end() -> None:
    """An expression that goes back would not end within the life of this machine."""
    names = TenantNames(["*a" * 100, "*".join("ab" * 50)])
    assert names.include("a" * 200) is True
    assert names.include("a" * 99 + "b" * 101) is False


@pytest.mark.parametrize("pattern", ["", "a" * 201, "a\nb", "\x00*"])
def test_a_pattern_that_no_name_can_match_is_refused(
    pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Misconfigured, match="--tenants must be a name"):
        TenantNames([pattern])
    assert main(["sidecar", "--no-token", "--tenants", pattern]) == 2
    assert "--tenants must be a name with 1 to 200 characters" in capsys.readouterr().err
