import httpx
import pytest

from tools.demo.scenario import DEPENDENCIES, PODS, STRANGER, TENANTS, TIERS
from tools.demo.vendor import Vendor

PER_POD = 30.0


@pytest.mark.parametrize("tenant", TENANTS, ids=lambda tenant: tenant.key)
def test_only_the_noisy_tenant_ever_exceeds_its_quota(tenant):
    quota = TIERS[tenant.tier]
    busiest = max(tenant.share_at(second / 10) for second in range(int(tenant.period_s * 10)))
    exceeds = busiest * PER_POD * len(PODS) > quota.limit / quota.window_s
    assert exceeds == (tenant.key == "noisy-sparrow")


def test_an_unregistered_tenant_stays_within_the_quota_of_the_default_tier():
    assert STRANGER.share * (1 + STRANGER.swing) * PER_POD * len(PODS) < TIERS[STRANGER.tier].limit


def test_the_shares_of_the_dependencies_are_of_one_whole():
    assert sum(dependency.share for dependency in DEPENDENCIES) == pytest.approx(1.0)


async def test_a_vendor_told_to_fail_fails_every_call_and_counts_it():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=Vendor()), base_url="http://v") as client:
        assert (await client.get("/payments-api/call")).status_code == 200
        told = await client.put("/control/payments-api", json={"failure_percent": 100, "latency_ms": 0})
        assert told.status_code == 200
        assert {(await client.get("/payments-api/call")).status_code for _ in range(5)} == {503}
        assert (await client.get("/search/call")).status_code == 200
        wrong = await client.put("/control/payments-api", json={"failure_percent": 101})
        assert wrong.status_code == 422
        stations = (await client.get("/control")).json()
    assert (stations["payments-api"]["received"], stations["payments-api"]["failed"]) == (6, 5)
