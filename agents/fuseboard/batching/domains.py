"""The domains of requests: a tenant, or an address or key that belongs to no tenant."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.batching.encoding import UNGUARDED, Piece
from fuseboard.batching.kept_demands import KeptDemands
from fuseboard.batching.redis_question import Question, RedisAnswer
from fuseboard.batching.settlements import Settlements
from fuseboard.batching.standing_demand import StandingDemand, refusal_reason
from fuseboard.configuration.snapshot import Quota, Snapshot, TenantRules
from fuseboard.contract import keys
from fuseboard.contract.budget_limits import BudgetLimit
from fuseboard.contract.endpoints import matches
from fuseboard.contract.limits import EVERY_SERVICE, service_rule
from fuseboard.contract.policy import Limit, Policy
from fuseboard.contract.words import Reason
from fuseboard.settings import MAX_SUBJECTS, scaled
from fuseboard.subject import NO_SUBJECT, ONE_CALL, Costs, Subject

#: The most demands of one subject; the oldest are dropped first.
MAX_DEMANDS = 2_000
#: The most lanes for calls, and for requests. When there are more, all are prepared again.
MAX_LANES = 50_000

#: The name of the domain of all callers, where it is a separate one.
ALL_CALLERS = "s:"


class LimitDomain:
    """Limits that one script call can decide together."""

    __slots__ = (
        "_head",
        "_incarnation",
        "_settlements",
        "gathering",
        "in_flight",
        "lonely",
        "name",
        "refusals",
        "store_wait_ms",
    )

    def __init__(self, name: str, settlements: Settlements, incarnation: str = "") -> None:
        """With the key of an ``incarnation``, a store that lost its data never grants a strict limit
        twice.
        """
        self.name = name
        self._incarnation = (incarnation.encode(),) if incarnation else ()
        self._head = Piece(2, 0) if incarnation else UNGUARDED
        self.gathering: Question | None = None
        self.in_flight: Question | None = None
        self.lonely = False
        self.store_wait_ms = 0
        self.refusals = settlements.refusals
        self._settlements = settlements

    def put(self, keys: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], Piece]:
        return self._incarnation + keys, self._head

    def learned(self, verdict: int, generation: int, wait_us: int, rest: str, sent_at: float) -> None:
        """There is no breaker here, but the store may have lost its data since the last answer."""
        if rest:
            self._head = Piece(2, rest)

    def reason_of(self, limit: Limit) -> Reason:
        return refusal_reason(limit, Reason.QUOTA)

    def unused(self, demand: Demand, answer: RedisAnswer) -> None:
        self._settlements.give_back(self.name, demand, answer)


class SubjectDemands:
    """The demands of one tenant, address or key."""

    __slots__ = ("__weakref__", "_demands", "_kept", "_most", "_plain", "domain", "under")

    def __init__(self, domain: LimitDomain, under: object, kept: KeptDemands, most: int) -> None:
        """At most ``most`` demands are kept, and fewer if ``kept`` has too many of all subjects."""
        self._kept, self._most = kept, most
        self.domain = domain
        #: The rules that the demands were made from. When they change, the demands are made again.
        self.under = under
        self._demands: OrderedDict[tuple[Costs, Subject], StandingDemand] = OrderedDict()
        self._plain: StandingDemand | None = None

    def demand(self, costs: Costs, subject: Subject, make: Callable[[], StandingDemand]) -> StandingDemand:
        """The one demand of all calls like this."""
        if costs is ONE_CALL and subject is NO_SUBJECT:
            if self._plain is None:
                self._plain = make()
                self._plain.plain = True
            return self._plain
        key = (costs, subject)
        demand = self._demands.get(key)
        if demand is None:
            demand = self._demands[key] = make()
            if len(self._demands) > self._most:
                self._drop_oldest()
            self._kept.add(self._drop_oldest)
        return demand

    def _drop_oldest(self) -> None:
        if self._demands:
            self._demands.popitem(last=False)


class RequestDomains:
    """Demands by tenant or subject, made on first use and again when a rule changes.

    When one question may contain keys of different hash tags (``Store.together``), all tenants and
    subjects are one domain: all callers of one tick share one question, which also decides the limits of
    all callers. Otherwise these are a separate domain, ``of_all_callers``.
    """

    def __init__(
        self,
        environment: str,
        settlements: Settlements,
        *,
        kept: KeptDemands,
        together: bool,
        service: str = "",
        most_subjects: int = MAX_SUBJECTS,
    ) -> None:
        #: The most tenants and subjects that are kept; the least recently used are dropped first. What they
        #: have spent is not kept here.
        self.most_subjects = most_subjects
        self._kept = kept
        self._environment = environment
        self._service = service
        self._settlements = settlements
        self._everybody: LimitDomain | None = None
        if together:
            self._everybody = LimitDomain("requests", settlements, keys.incarnation(environment))
        self._asked: OrderedDict[str, SubjectDemands] = OrderedDict()
        self._policy: Policy | None = None
        self._service_refs: tuple[LimitRef, ...] = ()

    def of_tenant(
        self, policy: Policy, tenant: str, rules: TenantRules, costs: Costs, subject: Subject
    ) -> tuple[LimitDomain, StandingDemand]:
        asked = self._get(f"t:{tenant}", rules)

        def make() -> StandingDemand:
            bound = [quota for quota in rules.of(tenant) if binds(quota.limit, costs, subject)]
            root = rules.root or tenant
            refs = [LimitRef(quota.limit, self._key(quota, root, subject)) for quota in bound]
            shared = self._shared_by_all(policy, costs, subject)
            demand = demand_of([*refs, *(shared if self._everybody else ())], costs, rules.priority)
            names: dict[str, tuple[str, ...]] = {}
            for quota in bound:
                names[quota.tenant] = (*names.get(quota.tenant, ()), quota.name)
            counted = (ref.limit.name for ref in shared)
            demand.rules, demand.inherited = (*names.pop(tenant, ()), *counted), names
            return demand

        return asked.domain, asked.demand(costs, subject, make)

    def _key(self, quota: Quota, root: str, subject: Subject) -> str:
        if isinstance(quota.limit, BudgetLimit):
            if quota.tenant == root:
                return keys.tenant_budget(self._environment, root, quota.limit.budget)
            return keys.member_budget(self._environment, root, quota.tenant, quota.limit.budget)
        values = tuple(subject.value(dimension) for dimension in quota.limit.per)
        if quota.tenant == root:
            return keys.tenant_quota(self._environment, root, quota.name, *values)
        return keys.member_quota(self._environment, root, quota.tenant, quota.name, *values)

    def of_subject(
        self, snapshot: Snapshot, costs: Costs, subject: Subject
    ) -> list[tuple[LimitDomain, StandingDemand]]:
        """One domain per combination of values that a limit counts by, and one of the limits of all callers
        unless the first one decides them too.
        """
        found = []
        shared = self._shared_by_all(snapshot.policy, costs, subject) if self._everybody else []
        by_values: dict[tuple[str, ...], list[Limit]] = {}
        for limit in snapshot.policy.subject_limits:
            if not binds(limit, costs, subject):
                continue
            values = tuple(f"{dimension}={subject.value(dimension)}" for dimension in limit.per)
            by_values.setdefault(values, []).append(limit)
        if not by_values:
            every = self.of_all_callers(snapshot.policy, costs, subject)
            return [every] if every is not None else []
        for values, limits in by_values.items():
            name = keys.values_digest(values)
            asked = self._get(f"i:{name}", snapshot.policy)

            also, shared = shared, []

            def make(
                limits: list[Limit] = limits, name: str = name, also: list[LimitRef] = also
            ) -> StandingDemand:
                key = keys.subject_limit
                refs = [LimitRef(limit, key(self._environment, name, limit.name)) for limit in limits]
                return demand_of([*refs, *also], costs)

            found.append((asked.domain, asked.demand(costs, subject, make)))
        if not self._everybody and (every := self.of_all_callers(snapshot.policy, costs, subject)):
            found.append(every)
        return found

    def of_own_limit(self, limit: Limit, key: str, costs: Costs) -> tuple[LimitDomain, StandingDemand]:
        """The demand of a limit that a caller brings, and no other limit. ``key`` is what it counts."""
        asked = self._get(f"i:{keys.own_subject(key)}:{limit.name}", limit)

        def make() -> StandingDemand:
            bound = [limit] if binds(limit, costs, NO_SUBJECT) else []
            counter = keys.own_limit(self._environment, key, limit.name)
            return demand_of([LimitRef(limit, counter) for limit in bound], costs)

        return asked.domain, asked.demand(costs, NO_SUBJECT, make)

    def of_all_callers(
        self, policy: Policy, costs: Costs, subject: Subject
    ) -> tuple[LimitDomain, StandingDemand] | None:
        """The limits of all callers as a demand; ``None`` when none applies."""
        if not policy.service_limits:
            return None
        asked = self._get(ALL_CALLERS, policy)
        endpoint = Subject(endpoint=subject.endpoint) if subject.endpoint else NO_SUBJECT
        demand = asked.demand(
            costs,
            endpoint,
            lambda: demand_of(self._shared_by_all(policy, costs, endpoint), costs),
        )
        return (asked.domain, demand) if demand.refs else None

    @property
    def most_demands(self) -> int:
        """The most demands of one subject, and the most of several requests together."""
        return scaled(MAX_DEMANDS, self.most_subjects)

    @property
    def most_lanes(self) -> int:
        """The most lanes of requests, and of calls."""
        return scaled(MAX_LANES, self.most_subjects)

    @property
    def of_everybody(self) -> LimitDomain | None:
        """The one domain of all tenants and subjects; ``None`` if each has its own."""
        return self._everybody

    @property
    def decides_together(self) -> bool:
        """Whether one question decides a tenant's quotas and the limits of all callers."""
        return self._everybody is not None

    def names_of_all_callers(self, policy: Policy, costs: Costs, subject: Subject) -> tuple[str, ...]:
        return tuple([ref.limit.name for ref in self._shared_by_all(policy, costs, subject)])

    def _shared_by_all(self, policy: Policy, costs: Costs, subject: Subject) -> list[LimitRef]:
        """The limits of all callers that apply: the same objects for every tenant."""
        if not policy.service_limits:
            return []
        if policy is not self._policy:
            self._policy, self._service_refs = policy, tuple(self._refs_of(policy.service_limits))
        return [ref for ref in self._service_refs if binds(ref.limit, costs, subject)]

    def _refs_of(self, limits: Iterable[Limit]) -> Iterable[LimitRef]:
        for limit in limits:
            if limit.service in (EVERY_SERVICE, self._service):
                key = keys.service_limit(self._environment, limit.name)
                yield LimitRef(replace(limit, name=service_rule(limit.name)), key)

    def _get(self, name: str, under: object) -> SubjectDemands:
        asked = self._asked.get(name)
        if asked is not None and asked.under is under:
            self._asked.move_to_end(name)
            return asked
        domain = self._everybody or LimitDomain(name, self._settlements)
        asked = self._asked[name] = SubjectDemands(domain, under, self._kept, self.most_demands)
        if len(self._asked) > self.most_subjects:
            self._asked.popitem(last=False)
        return asked


def binds(limit: Limit, costs: Costs, subject: Subject, *, dependency: str = "") -> bool:
    """Whether a limit applies: right dependency (or none), its measure has a cost, its values are known,
    its endpoint matches.
    """
    return (
        limit.dependency == dependency
        and any(measure == limit.measure and amount > 0 for measure, amount in costs)
        and all(subject.value(dimension) for dimension in limit.per)
        and (not limit.endpoints or matches(subject.endpoint, limit.endpoints))
    )


def demand_of(refs: list[LimitRef], costs: Costs, priority: int = 50) -> StandingDemand:
    """The demand of a call with these costs."""
    amounts = dict(costs)
    return StandingDemand(tuple(refs), tuple(amounts[ref.limit.measure] for ref in refs), priority)
