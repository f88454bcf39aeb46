"""Requests, counted by tenant and by the rules that apply to them. See ``counters`` for threads."""

from collections import Counter
from collections.abc import Iterable, Iterator

from fuseboard.contract.limits import is_service_rule
from fuseboard.contract.sync import RuleCounters

#: Tenants with separate counts. Requests of further tenants are counted in the totals only.
MAX_TENANTS = 10_000
#: Different sets of rules that are counted per tenant.
MAX_WAYS = 16
#: Rules in a heartbeat: per tenant, and of all tenants together.
MAX_OF_TENANT, MAX_OF_ALL = 5, 50


class RequestTally:
    """Requests of one tenant that the same rules apply to. Kept with the demand of like requests."""

    __slots__ = ("allowed", "below", "leased", "refused", "refused_by", "rules", "shadow", "tenant")

    def __init__(self, tenant: str, rules: tuple[str, ...], *, below: bool = False) -> None:
        self.tenant = tenant
        #: Requests of its children, which the totals count for the children.
        self.below = below
        self.rules = rules
        self.allowed = 0
        self.refused = 0
        #: Allowed requests from a fleet lease of a hot key.
        self.leased = 0
        #: Rule -> requests it refused; and for shadow rules, calls it would have refused.
        self.refused_by: dict[str, int] = {}
        self.shadow: dict[str, int] = {}

    @property
    def asked(self) -> int:
        return self.allowed + self.refused

    def allow_leased(self, calls: int, *, hot: bool) -> None:
        """Count calls from a fleet lease. Those from an early one are calls like all others."""
        self.allowed += calls
        if hot:
            self.leased += calls

    def refuse(self, rule: str) -> None:
        self.refused += 1
        if rule in self.rules:
            self.refused_by[rule] = self.refused_by.get(rule, 0) + 1

    def refuse_inherited(self, rule: str) -> None:
        """A request of a child was refused. It counts here when a rule of this tenant refused it."""
        owner, _, name = rule.rpartition("/")
        if owner == self.tenant:
            self.refuse(name)

    def would_refuse(self, rule: str, calls: int) -> None:
        if rule in self.rules:
            self.shadow[rule] = self.shadow.get(rule, 0) + calls


#: The tally of demands whose requests are not counted by tenant.
UNCOUNTED = RequestTally("", ())


class RequestTallies:
    """All tallies, in a bounded table that only grows."""

    def __init__(self, most_tenants: int = MAX_TENANTS) -> None:
        self._most_tenants = most_tenants
        self._of_tenants: dict[str, dict[tuple[str, ...], RequestTally]] = {}
        self._below: dict[str, dict[tuple[str, ...], RequestTally]] = {}
        self._rest = RequestTally("", ())

    # Called by the event loop

    def find(self, tenant: str, rules: tuple[str, ...], *, below: bool = False) -> RequestTally:
        """The tally of a tenant's own requests, or of those of its children (``below``).

        When there are too many tenants, all further ones share one tally.
        """
        table = self._below if below else self._of_tenants
        ways = table.get(tenant)
        if ways is None:
            if len(table) >= min(self._most_tenants, MAX_TENANTS):
                return UNCOUNTED if below else self._rest
            ways = table[tenant] = {}
        tally = ways.get(rules)
        if tally is None:
            if len(ways) >= MAX_WAYS and rules:
                return self.find(tenant, (), below=below)
            tally = ways[rules] = RequestTally(tenant, rules, below=below)
        return tally

    # Called by one reader, the sync thread

    def __iter__(self) -> Iterator[RequestTally]:
        yield self._rest
        for table in (self._of_tenants, self._below):
            for ways in table.copy().values():
                yield from ways.copy().values()

    @property
    def left_out(self) -> bool:
        """Whether requests were counted without their tenant."""
        return self._rest.asked > 0

    def total(self) -> int:
        return sum(tally.asked for tally in self if not tally.below)

    def by_tenant(self) -> dict[str, tuple[int, int]]:
        """Tenant -> allowed and refused, with the requests of its children."""
        found: dict[str, tuple[int, int]] = {}
        for tally in self:
            if tally.tenant:
                allowed, refused = found.get(tally.tenant, (0, 0))
                found[tally.tenant] = allowed + tally.allowed, refused + tally.refused
        return found

    def rules_of(self, tenant: str) -> tuple[RuleCounters, ...]:
        """Sorted by name; only the first ones when there are many."""
        tables = (self._of_tenants, self._below)
        tallies = [tally for table in tables for tally in table.get(tenant, {}).copy().values()]
        # Usually all rules apply to all requests; then the number need not be sent.
        return _rule_counters(tallies, most=MAX_OF_TENANT, whole=len(tallies) == 1, shared=False)

    def rules_of_all(self) -> tuple[RuleCounters, ...]:
        return _rule_counters((tally for tally in self if not tally.below), most=MAX_OF_ALL, whole=False)


def _rule_counters(
    tallies: Iterable[RequestTally], *, most: int, whole: bool, shared: bool = True
) -> tuple[RuleCounters, ...]:
    """``shared``: also the limits of all callers, which are the same for every tenant."""
    asked: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    shadow: Counter[str] = Counter()
    leased: Counter[str] = Counter()
    for tally in tallies:
        for rule in tally.rules:
            asked[rule] += tally.asked
            leased[rule] += tally.leased
        refused.update(tally.refused_by.copy())
        shadow.update(tally.shadow.copy())
    return tuple(
        RuleCounters(
            rule=rule,
            asked=None if whole else asked[rule],
            refused=refused[rule],
            shadow=shadow[rule],
            leased=leased[rule],
        )
        for rule in sorted(rule for rule in asked if shared or not is_service_rule(rule))[:most]
    )
