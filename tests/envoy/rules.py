"""A policy with the rules of docs/envoy.md, and the names of what Envoy counts."""

from fuseboard.contract.limits import Limit
from fuseboard.contract.policy import Policy, Tier
from fuseboard.contract.words import Algorithm, FailurePolicy, Period
from tests.agents.servers import POLICY
from tests.envoy.conftest import policy_of
from tests.envoy.samples import sample

DAY_S = 86_400
ACME = {"x-tenant": "acme"}
#: The filters wait for as long as the bridge does: a busy machine pauses.
PATIENTLY = ("--timeout-ms", "1000")
OK, OVER, ERROR = (f"cluster.app.ratelimit.{name}" for name in ("ok", "over_limit", "error"))
CALLS_OK, CALLS_OVER, CALLS_ERROR = (
    f"cluster.app.ratelimit.breakers.{name}" for name in ("ok", "over_limit", "error")
)


def daily(limit: int, measure: str = "calls") -> Limit:
    """A limit of one calendar day."""
    return Limit(
        name=measure,
        limit=limit,
        window_ms=DAY_S * 1000,
        algorithm=Algorithm.FIXED_WINDOW,
        period=Period.DAY,
        measure=measure,
        failure_policy=FailurePolicy.LOCAL_SHARE,
    )


def policy(*quotas: Limit, base: Policy = POLICY) -> Policy:
    """The rules of the page, and these quotas for the tenant acme."""
    tiers = (Tier(name="free", quotas=quotas), Tier(name="unlimited"))
    return policy_of(sample("# calls.yaml"), sample("# edge.yaml"), policy=base, tiers=tiers)
