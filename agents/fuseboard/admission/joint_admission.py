"""Several requests that are decided together: all are allowed, or none."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from time import monotonic

from msgspec import Struct, field
from msgspec.structs import replace

from fuseboard.admission.decisions import Refusal
from fuseboard.admission.lanes import RequestLane
from fuseboard.admission.request_admission import LOCAL, SHARED, RequestAdmission
from fuseboard.batching.distribute import give_back
from fuseboard.batching.domains import LimitDomain
from fuseboard.batching.joint_demand import JointDemand
from fuseboard.batching.redis_question import RedisAnswer
from fuseboard.batching.standing_demand import StandingDemand, refusal_reason
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Mode, Reason
from fuseboard.decision import Account, Charge, Decision, LimitStatus
from fuseboard.subject import NO_SUBJECT, ONE_CALL, Costs, Subject
from fuseboard.without_redis.local_limits import LocalRefusal


class OwnLimit(Struct, frozen=True):
    """A limit that is in no configuration, and what it counts."""

    limit: Limit
    key: str


class Wanted(Struct, frozen=True):
    """One of the requests, with checked values. Without a tenant, its address or key decides, or else its own
    limit.
    """

    tenant: str
    costs: Costs
    subject: Subject
    own: OwnLimit | None = None


class Asked(Struct, frozen=True):
    """One of the requests, with the lanes that decide it."""

    wanted: Wanted
    lanes: tuple[RequestLane, ...]


class JointRefusal(Struct, frozen=True):
    """Why all are refused now, and which of them lack something, numbered from 0."""

    refusal: Refusal
    requests: frozenset[int]
    #: The place of the limit that refused in the joint demand, from 0; -1 for none.
    blocked: int = -1
    #: The rest of each limit; empty for unknown.
    left: tuple[int, ...] = ()
    mode: Mode | None = None


class JointAdmission(Struct, frozen=True):
    """Belongs to the event loop.

    One script call decides. On a Cluster, where no script can have the keys of several tenants, they are
    decided in turn, and what was spent is given back if one is refused: too much is never allowed, and for a
    moment too little.
    """

    requests: RequestAdmission
    #: The demands of each request -> the demand of all. When a rule changes, the demands are others. The
    #: least recently used are dropped first.
    known: OrderedDict[tuple[tuple[StandingDemand, ...], ...], JointDemand] = field(
        default_factory=OrderedDict
    )

    async def admit(self, wanted: Sequence[Wanted]) -> Decision:
        """Decide all of them. ``parts`` of the decision has one for each."""
        if not self.knows(wanted):
            await self.load(wanted)
        asked = [Asked(one, self.lanes(one)) for one in wanted]
        domain = self.requests.domains.of_everybody
        if domain is None:
            return await self._in_turn(asked)
        decision = await self._together(domain, asked, self._demand(asked))
        for one, part in zip(asked, decision.parts, strict=True):
            # If another one was refused, this one was neither allowed nor refused.
            if part.allowed is decision.allowed:
                self._count(one, part)
        return decision

    async def check(self, wanted: Sequence[Wanted]) -> Decision:
        """Return what ``admit`` would decide now. Nothing is charged, counted or remembered."""
        await self.load(wanted)
        asked = [Asked(one, self.lanes(one)) for one in wanted]
        everybody = self.requests.domains.of_everybody
        if everybody is not None:
            return await self._check(everybody, asked, self._demand(asked))
        domains = dict.fromkeys([lane.domain for one in asked for lane in one.lanes])
        found: list[Decision] = []
        for domain in domains:
            of_it = [
                replace(one, lanes=tuple([lane for lane in one.lanes if lane.domain is domain]))
                for one in asked
            ]
            joint = self._demand(of_it)
            alone = self._remembered_alone(domain, of_it, joint)
            found.append(
                await self._check(domain, of_it, joint)
                if alone is None
                else self._refuse(of_it, joint, alone)
            )
        return self._merged(asked, found)

    def knows(self, wanted: Sequence[Wanted]) -> bool:
        """Whether the records of all their tenants were looked up."""
        snapshot = self.requests.configuration.snapshot
        return all(not one.tenant or snapshot.quotas_of(one.tenant).loaded for one in wanted)

    async def load(self, wanted: Sequence[Wanted]) -> None:
        """Look up the tenants without a record, together. Only one answer that is late is waited for."""
        configuration = self.requests.configuration
        missing = [
            one.tenant
            for one in wanted
            if one.tenant and not configuration.snapshot.quotas_of(one.tenant).loaded
        ]
        for tenant in missing:
            configuration.want(tenant)
        for tenant in missing:
            if not (await configuration.load_record(tenant)).loaded:
                return

    def lanes(self, one: Wanted) -> tuple[RequestLane, ...]:
        """The lanes that decide a request whose tenant was looked up."""
        requests = self.requests
        if (own := one.own) is not None:
            domain, demand = requests.domains.of_own_limit(own.limit, own.key, one.costs)
            return (RequestLane(requests.configuration.snapshot, domain, demand),)
        if not one.tenant:
            snapshot = requests.configuration.snapshot
            found = requests.domains.of_subject(snapshot, one.costs, one.subject)
            return tuple([RequestLane(snapshot, domain, demand) for domain, demand in found])
        if one.costs is ONE_CALL and one.subject is NO_SUBJECT:
            plain = requests.plain_lane(one.tenant)
            if plain is not None:
                return (plain,)
        lane = requests.lane(one.tenant, one.costs, one.subject)
        return (lane,) if lane.beside is None else (lane.beside, lane)

    def _demand(self, asked: Sequence[Asked]) -> JointDemand:
        """The one demand of all requests like these."""
        key = tuple([tuple([lane.demand for lane in one.lanes]) for one in asked])
        joint = self.known.get(key)
        if joint is None:
            joint = self.known[key] = JointDemand(key)
            if len(self.known) > self.requests.domains.most_demands:
                self.known.popitem(last=False)
        else:
            self.known.move_to_end(key)
        return joint

    # One question

    async def _together(self, domain: LimitDomain, asked: Sequence[Asked], joint: JointDemand) -> Decision:
        refused = self._known_refusal(domain, asked, joint)
        if refused is not None:
            return self._refuse(asked, joint, refused)
        if not joint.refs:
            return self._allow(asked, joint)
        requests = self.requests
        answer: RedisAnswer | None = None
        if requests.health.mode is SHARED or requests.asks_in_a_ramp():
            caller = requests.batcher.ask(domain, joint)
            try:
                answer = await caller
            except asyncio.CancelledError:
                give_back(domain, joint, caller)
                raise
        if answer is None:
            return self._decide_locally(domain, asked, joint)
        if not answer.granted:
            return self._refuse(asked, joint, self._refusal_in(domain, joint, answer))
        owner = requests.decisions
        charges = [
            Charge(domain.name, demand, answer.at_us, answer.token, account=Account(owner, answer.uncounted))
            for demand in joint.charged
        ]
        return self._allow(asked, joint, joint.statuses(answer.left), tuple(charges))

    async def _check(self, domain: LimitDomain, asked: Sequence[Asked], joint: JointDemand) -> Decision:
        """Return what ``_together`` would decide. During a ramp, both Redis and this pod must have room:
        either may decide the next ones.
        """
        refused = self._known_refusal(domain, asked, joint)
        if refused is not None:
            return self._refuse(asked, joint, refused)
        if not joint.refs:
            return self._allow(asked, joint)
        requests = self.requests
        shared_part = requests.health.rounded_shared_part
        answer = await requests.batcher.ask(domain, joint.probe) if shared_part > 0 else None
        left: tuple[int, ...] = ()
        if answer is not None:
            left = answer.left[: len(joint.refs)]
            lacking = joint.lacking(left)
            if lacking:
                # If the wait is shorter than that of the probe itself, Redis names the probe.
                place = answer.blocked - 1 if answer.blocked - 1 in lacking else min(lacking)
                return self._refuse(asked, joint, self._refusal_by(domain, joint, place, answer.wait_s, left))
            if shared_part >= 1:
                return self._allow(asked, joint, joint.statuses(left))
        blocked = requests.local.look(joint, requests.health.local_part, monotonic())
        if blocked is not None:
            return self._refuse(asked, joint, self._local_refusal(domain, joint, blocked))
        return self._allow(asked, joint, joint.statuses(left), mode=LOCAL if answer is None else None)

    def _known_refusal(
        self, domain: LimitDomain, asked: Sequence[Asked], joint: JointDemand
    ) -> JointRefusal | None:
        """The refusal that this pod knows without a question; ``None`` if Redis has to be asked."""
        suspended = [number for number, one in enumerate(asked) if any(lane.suspended for lane in one.lanes)]
        if suspended:
            return JointRefusal(Refusal(Reason.SUSPENDED, "suspended"), frozenset(suspended))
        if (place := joint.impossible_place) is not None:
            limit = joint.refs[place].limit
            return _by_limit(joint, Refusal(domain.reason_of(limit), limit.name), place)
        remembered = joint.remembered
        if remembered is None or (left_s := domain.refusals.left_s(joint)) <= 0:
            return None
        return _by_limit(joint, Refusal(remembered.reason, remembered.rule, left_s), remembered.place - 1)

    def _refusal_in(self, domain: LimitDomain, joint: JointDemand, answer: RedisAnswer) -> JointRefusal:
        """Why Redis refused them."""
        return self._refusal_by(domain, joint, answer.blocked - 1, answer.wait_s, answer.left)

    def _refusal_by(
        self, domain: LimitDomain, joint: JointDemand, place: int, wait_s: float, left: tuple[int, ...]
    ) -> JointRefusal:
        limit = joint.refs[place].limit
        refusal = Refusal(domain.reason_of(limit), limit.name, wait_s)
        return JointRefusal(refusal, joint.requests_with(joint.lacking(left)), place, left)

    def _decide_locally(self, domain: LimitDomain, asked: Sequence[Asked], joint: JointDemand) -> Decision:
        requests, now = self.requests, monotonic()
        requests.counters.decided_locally()
        blocked = requests.local.take(joint, requests.health.local_part, now)
        if blocked is not None:
            return self._refuse(asked, joint, self._local_refusal(domain, joint, blocked))
        charges = tuple([requests.decisions.local_charge(demand, now) for demand in joint.charged])
        return self._allow(asked, joint, joint.statuses(), charges, LOCAL)

    def _local_refusal(self, domain: LimitDomain, joint: JointDemand, blocked: LocalRefusal) -> JointRefusal:
        usual = domain.reason_of(blocked.limit)
        reason = Reason.STORE_UNAVAILABLE if blocked.unavailable else usual
        refusal = Refusal(reason, blocked.limit.name, blocked.wait_s)
        return replace(_by_limit(joint, refusal, joint.keys.index(blocked.key)), mode=LOCAL)

    # On a Cluster

    async def _in_turn(self, asked: Sequence[Asked]) -> Decision:
        """The requests after the first one that is refused are not asked about."""
        spent: list[Charge] = []
        parts: list[Decision] = []
        refused: Decision | None = None
        try:
            for one in asked:
                part = self._allow_one(one)
                for lane in one.lanes if refused is None else ():
                    decided = await self.requests.decide(lane)  # it counts the requests of a tenant
                    spent += decided.charges
                    limits = part.limits + decided.limits
                    part = replace(decided, tenant=one.wanted.tenant, limits=limits, charges=())
                    if not decided.allowed:
                        refused = part
                        break
                if not one.wanted.tenant and part.allowed is (refused is None):
                    self._count(one, part)
                parts.append(part)
        finally:  # also when the caller is cancelled between two of them
            if refused is not None or len(parts) < len(asked):
                for charge in spent:
                    self.requests.give_back(charge)
        limits = tuple([limit for part in parts for limit in part.limits])
        if refused is not None:
            return replace(refused, limits=limits, parts=tuple(parts))
        allowed = self.requests.decisions.allow(
            self.requests.configuration.snapshot, limits, _mode_of(parts), charges=tuple(spent)
        )
        return replace(allowed, parts=tuple(parts))

    def _remembered_alone(
        self, domain: LimitDomain, asked: Sequence[Asked], joint: JointDemand
    ) -> JointRefusal | None:
        """The refusal of one of the requests that this pod knows without a question."""
        for demand in [lane.demand for one in asked for lane in one.lanes]:
            remembered = demand.remembered
            if remembered is not None and (left_s := domain.refusals.left_s(demand)) > 0:
                place = joint.keys.index(demand.keys[remembered.place - 1])
                return _by_limit(joint, Refusal(remembered.reason, remembered.rule, left_s), place)
        return None

    def _merged(self, asked: Sequence[Asked], found: Sequence[Decision]) -> Decision:
        """One decision of those of several domains, each with all requests."""
        parts: list[Decision] = []
        for number, one in enumerate(asked):
            of_it = [decision.parts[number] for decision in found]
            limits = tuple([limit for part in of_it for limit in part.limits])
            refused = next((part for part in of_it if not part.allowed), self._allow_one(one))
            parts.append(replace(refused, tenant=one.wanted.tenant, limits=limits))
        whole = next((decision for decision in found if not decision.allowed), None)
        if whole is None:
            whole = self.requests.decisions.allow(
                self.requests.configuration.snapshot, mode=_mode_of([*found, *parts])
            )
        limits = tuple([limit for part in parts for limit in part.limits])
        return replace(whole, limits=limits, parts=tuple(parts))

    # Decisions

    def _allow(
        self,
        asked: Sequence[Asked],
        joint: JointDemand,
        statuses: tuple[LimitStatus, ...] = (),
        charges: tuple[Charge, ...] = (),
        mode: Mode | None = None,
    ) -> Decision:
        snapshot = self.requests.configuration.snapshot
        parts = [
            self._allow_one(one, _of_one(statuses, places), mode)
            for one, places in zip(asked, joint.places_of, strict=True)
        ]
        return self.requests.decisions.allow(snapshot, statuses, mode, charges=charges, parts=tuple(parts))

    def _allow_one(
        self, one: Asked, limits: tuple[LimitStatus, ...] = (), mode: Mode | None = None
    ) -> Decision:
        snapshot = self.requests.configuration.snapshot
        return self.requests.decisions.allow(snapshot, limits, mode, tenant=one.wanted.tenant)

    def _refuse(self, asked: Sequence[Asked], joint: JointDemand, refused: JointRefusal) -> Decision:
        snapshot, refusal, mode = self.requests.configuration.snapshot, refused.refusal, refused.mode
        statuses = joint.statuses(refused.left)
        parts: list[Decision] = []
        first = ""
        for number, (one, places) in enumerate(zip(asked, joint.places_of, strict=True)):
            limits = _of_one(statuses, places)
            if number not in refused.requests:
                parts.append(self._allow_one(one, limits, mode))
                continue
            first = first or one.wanted.tenant
            own = self._own_refusal(joint, refused, places)
            tenant = one.wanted.tenant
            parts.append(self.requests.decisions.refuse(snapshot, own, limits, mode, tenant=tenant))
        whole = self.requests.decisions.refuse(snapshot, refusal, statuses, mode, tenant=first)
        return replace(whole, parts=tuple(parts))

    def _own_refusal(self, joint: JointDemand, refused: JointRefusal, places: tuple[int, ...]) -> Refusal:
        """The refusal of one request: by its own limit, and as long as all are refused."""
        if refused.blocked < 0 or refused.blocked in places:
            return refused.refusal
        short = joint.lacking(refused.left)
        limit = joint.refs[next(place for place in places if place in short)].limit
        return Refusal(refusal_reason(limit, Reason.QUOTA), limit.name, refused.refusal.wait_s)

    def _count(self, one: Asked, decision: Decision) -> None:
        wanted, requests = one.wanted, self.requests
        if wanted.own is not None:
            # The limit is not named: rules are counted by name, and a quota can have the same one.
            requests.counters.request("-", decision.allowed, decision.reason)
        elif wanted.tenant:
            requests.count(one.lanes[-1], decision)
        else:
            requests.count_without_tenant(wanted.costs, wanted.subject, decision)


def _by_limit(joint: JointDemand, refusal: Refusal, place: int) -> JointRefusal:
    """The refusal by one limit, when it is not known what the others have left."""
    return JointRefusal(refusal, joint.requests_with({place}), place)


def _of_one(statuses: tuple[LimitStatus, ...], places: tuple[int, ...]) -> tuple[LimitStatus, ...]:
    return tuple([statuses[place] for place in places]) if statuses else ()


def _mode_of(parts: Sequence[Decision]) -> Mode:
    """Local if one of them was decided alone."""
    return LOCAL if any(part.mode is LOCAL for part in parts) else parts[-1].mode
