"""The usage of a call to a language model: five numbers, and the measures that limits count them in."""

from msgspec import Struct

from fuseboard.agent_api.arguments import MAX_ACTUAL
from fuseboard.batching.demand import most_in_redis
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.budget_limits import limits_of
from fuseboard.contract.models import Price, micro_usd
from fuseboard.contract.policy import Limit

#: The measures of tokens that a model client states and settles.
MEASURES = ("tokens", "input_tokens", "output_tokens", "fresh_tokens", "cached_tokens", "written_tokens")
#: The measure of money, which a call costs if its model has a price.
MICRO_USD = "micro_usd"
#: Every measure that a model client settles.
SETTLED = (*MEASURES, MICRO_USD)


class Usage(Struct):
    """Tokens of one call, or of several. ``fresh`` is the input that was neither read from the vendor's cache
    nor written to it.
    """

    fresh: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0
    calls: int = 1
    #: The vendor has reported the input, and the whole output.
    has_input: bool = False
    has_output: bool = False
    #: Letters of the output that came.
    letters: int = 0
    #: Limits on the input also count what was read from the vendor's cache. Those of Anthropic do not.
    counts_cached: bool = True

    def set_input(self, fresh: int, cached: int, written: int) -> None:
        self.fresh, self.cached, self.written = _tokens(fresh), _tokens(cached), _tokens(written)
        self.has_input = True

    def set_output(self, output: int, *, whole: bool = True) -> None:
        """``whole``: the vendor has reported all of it."""
        self.output = _tokens(output)
        self.has_output = self.has_output or whole

    @property
    def input(self) -> int:
        return self.fresh + self.cached + self.written

    def amounts(self, price: Price | None = None, *, batch: bool = False) -> dict[str, int]:
        """Tokens by measure, and with a ``price``, that of a call or of a ``batch`` in micro-USD."""
        found = {measure: self.amount(measure, counts_cached=self.counts_cached) for measure in MEASURES}
        if price is not None:
            found[MICRO_USD] = self.cost(price, batch=batch)
        return found

    def amount(self, measure: str, *, counts_cached: bool) -> int:
        """``counts_cached``: limits on the input count also what was read from the vendor's cache."""
        counted = self.input if counts_cached else self.fresh + self.written
        amounts = {
            "tokens": counted + self.output,
            "input_tokens": counted,
            "output_tokens": self.output,
            "fresh_tokens": self.fresh,
            "cached_tokens": self.cached,
            "written_tokens": self.written,
        }
        return min(amounts[measure], MAX_ACTUAL)

    def cost(self, price: Price, *, batch: bool = False) -> int:
        """In micro-USD."""
        cost = micro_usd(
            price,
            fresh=self.fresh,
            cached=self.cached,
            written=self.written,
            output=self.output,
            batch=batch,
        )
        return min(cost, MAX_ACTUAL)


def measures_of(
    snapshot: Snapshot | None, dependency: str, tenant: str, *, priced: bool = False
) -> dict[str, int | None]:
    """The measures to state, and the most of each that a call may cost; ``None`` for no known bound.

    Parents and a tenant that was not looked up yet may have limits of any measure. A call without a price
    states no money. For any thread.
    """
    measures = SETTLED if priced else MEASURES
    found: dict[str, int | None] = dict.fromkeys(measures) if tenant else {}
    if snapshot is None:
        return found
    known = snapshot.dependency(dependency)
    limits = [*known.vendor_limits, *limits_of(known.budgets)] if known is not None else []
    if (account := snapshot.account_of(dependency)) is not None:
        limits += limits_of(account.budgets)
    if tenant:
        limits += [quota for quota in _quotas_of(snapshot, tenant) if quota.dependency in ("", dependency)]
    for limit in limits:
        if limit.measure in measures:
            before, most = found.get(limit.measure), most_in_redis(limit)
            found[limit.measure] = most if before is None else min(before, most)
    return found


def _quotas_of(snapshot: Snapshot, tenant: str) -> tuple[Limit, ...]:
    kept = snapshot.tenants.peek(tenant)
    own = kept.record.quotas if kept is not None and kept.record is not None else ()
    names = {quota.name for quota in own}
    of_tier = [quota for quota in snapshot.tier_of(tenant).quotas if quota.name not in names]
    return (*own, *of_tier, *limits_of(snapshot.budgets_of(tenant)))


def _tokens(number: int) -> int:
    return min(max(0, number), MAX_ACTUAL)
