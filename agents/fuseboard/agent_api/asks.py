"""Requests that are decided together."""

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from time import monotonic

import msgspec
from msgspec.structs import replace

from fuseboard.admission.joint_admission import OwnLimit, Wanted
from fuseboard.agent_api.arguments import INVALID, check_costs, harmless
from fuseboard.agent_api.loop_agent import LoopAgent
from fuseboard.agent_api.pod_state import PodState
from fuseboard.contract.addresses import IPV6_PREFIX
from fuseboard.contract.limits import check_limits
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import is_subject
from fuseboard.decision import Decision
from fuseboard.errors import Misconfigured
from fuseboard.subject import NO_SUBJECT, Ask, Costs, ask_costs

#: The most requests that are decided together.
MAX_ASKS = 50
#: The longest key of a limit of the caller, in characters.
MAX_KEY = 1_000


class PreparedAsks(tuple[Ask, ...]):
    """Requests that were checked, for one who asks for the same again and again: see ``prepare``."""

    wanted: Sequence[Wanted]
    ipv6_prefix: int


def prepare(asks: Sequence[Ask], ipv6_prefix: int = IPV6_PREFIX) -> PreparedAsks:
    """The requests, checked once. Do not change their costs. Raises ``Misconfigured``."""
    prepared = PreparedAsks(asks)
    prepared.wanted, prepared.ipv6_prefix = check_asks(asks, ipv6_prefix), ipv6_prefix
    return prepared


def check_asks(asks: object, ipv6_prefix: int = IPV6_PREFIX) -> Sequence[Wanted]:
    """The requests, with values that can be counted. Raises ``Misconfigured``."""
    if isinstance(asks, PreparedAsks) and asks.ipv6_prefix == ipv6_prefix:
        return asks.wanted
    if not isinstance(asks, Sequence) or not all(isinstance(ask, Ask) for ask in asks):
        raise Misconfigured(f"asks must be a list of fuseboard.Ask, not {asks!r:.80}")
    if not 1 <= len(asks) <= MAX_ASKS:
        raise Misconfigured(f"1 to {MAX_ASKS} asks are decided together, not {len(asks)}")
    wanted = [_wanted(ask, ipv6_prefix) for ask in asks]
    _check_own_limits([one.own for one in wanted if one.own is not None])
    return wanted


def _wanted(ask: Ask, ipv6_prefix: int) -> Wanted:
    if ask.costs is not None:
        check_costs(ask.costs)
    costs = ask_costs(ask)
    if ask.limit is not None or ask.key:
        return _own(ask, costs)
    subject, tenant = harmless(ask.subject, ipv6_prefix), ask.tenant
    if tenant is None:
        if subject == NO_SUBJECT:
            raise Misconfigured("a caller without a tenant is decided by its address or key: pass a subject")
        tenant = ""
    elif not isinstance(tenant, str):
        raise Misconfigured(f"tenant must be text, not {type(tenant).__name__}")
    elif not is_subject(tenant):
        tenant = INVALID
    return Wanted(tenant, costs, subject)


def _own(ask: Ask, costs: Costs) -> Wanted:
    """The request that a limit of its caller decides."""
    if not isinstance(ask.limit, Limit):
        raise Misconfigured(
            f"limit must be a fuseboard.contract.policy.Limit, not {type(ask.limit).__name__}"
        )
    key: object = ask.key
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY:
        raise Misconfigured(f"the key of a limit must be a text of 1 to {MAX_KEY} characters")
    if ask.tenant is not None or ask.subject != NO_SUBJECT:
        raise Misconfigured("a limit of the caller decides alone: make another ask for the tenant or subject")
    # Half a surrogate pair cannot be encoded. It counts as "?", as in the values of a subject.
    key = key.encode(errors="replace").decode()
    try:
        limit = _checked(ask.limit)
    except TypeError as error:  # such as a list in place of a tuple
        raise Misconfigured(f"the limit {ask.limit.name!r:.80} is not valid: {error}") from None
    return Wanted("", costs, NO_SUBJECT, OwnLimit(limit, key))


def _check_own_limits(own: Sequence[OwnLimit]) -> None:
    """Raises ``Misconfigured`` if two rules have one counter: only one of them would decide."""
    rules: dict[tuple[str, str], Limit] = {}
    for one in own:
        if rules.setdefault((one.limit.name, one.key), one.limit) != one.limit:
            raise Misconfigured(f"two limits are named {one.limit.name!r} and count the same key")


@lru_cache(maxsize=4096)
def _checked(limit: Limit) -> Limit:
    """A limit that can be counted. Equal limits are one object: their demands are found by it."""
    try:
        checked = msgspec.convert(msgspec.to_builtins(limit), Limit)
        check_limits("limit", (checked,))
    except ValueError as error:  # those of msgspec and of the policy are ValueErrors
        raise Misconfigured(f"the limit {limit.name!r:.80} is not valid: {error}") from None
    if checked.per or checked.endpoints or checked.dependency or checked.service:
        raise Misconfigured("a limit of the caller counts its key: leave out per, endpoints and services")
    return checked


def undecided(agent: LoopAgent, asks: Sequence[Ask]) -> Decision:
    """The decision when the agent itself cannot decide: the agent never fails a request."""
    parts = tuple([agent.allow_unasked(tenant=ask.tenant or "") for ask in asks])
    return replace(agent.allow_unasked(), parts=parts)


class Asks(PodState, LoopAgent):
    """The methods of ``fuseboard.Agent`` that take several requests."""

    async def admit_together(self, asks: Sequence[Ask]) -> Decision:
        """Decide up to 50 requests at once: all are allowed and charged, or none.

        Each is what ``admit_request`` takes, and is charged to the same limits, or has a ``limit`` of its
        caller, which counts its ``key``. A limit that several of them share is charged their sum, also a
        limit of all callers. ``parts`` of the decision has a decision for each: what its limits have left,
        and when all are refused, which of its own limits refused, if any, and for how long. A part that is
        allowed then lacks nothing itself.

        Pass the decision, not a part, to ``finish``, ``settle`` or ``give_back``: they are about all of them.
        ``settle`` says what each of them has cost of a measure. One script call in Redis decides, so no other
        caller gets in between. On a Cluster they are decided in turn, and what was spent is given back if
        one is refused: never too much is allowed, and the parts after the refused one have no figures.
        Nothing waits for the end of a refusal.

        Never raises because of a store or the control plane. Raises ``Misconfigured`` for invalid arguments.
        """
        wanted = self._wanted(asks)
        runtime = self._runtime
        observer, begun = runtime.observer, monotonic()
        decision = await self._decided(asks, lambda: runtime.admission.joint.admit(wanted))
        if not decision.allowed:
            for part, one in zip(decision.parts, wanted, strict=True):
                if not part.allowed:
                    runtime.refusal_samples.offer(part, one.subject)
        if observer is not None:
            self._safely(partial(observer.decided, decision, monotonic() - begun))
        return decision

    async def check_together(self, asks: Sequence[Ask]) -> Decision:
        """Return what ``admit_together`` would decide now, without a charge: nothing is spent, taken, or
        counted as a request.

        ``parts`` of the decision has a decision for each request: what its limits have left, and which of
        them refuses. Callers that ask at the same time share one question to Redis. Without Redis, the
        shares of the pod decide, and nothing says what is left. During a ramp, both Redis and the pod must
        have room. On a Cluster, what the pod has leased counts as spent.

        Another caller may be faster: only ``admit_together`` takes what it allows.

        Never raises because of a store or the control plane. Raises ``Misconfigured`` for invalid arguments.
        """
        wanted = self._wanted(asks)
        return await self._decided(asks, lambda: self._runtime.admission.joint.check(wanted))

    def _wanted(self, asks: Sequence[Ask]) -> Sequence[Wanted]:
        wanted = check_asks(asks, self.configuration.snapshot.tuning.ipv6_prefix)
        self._check_loop()
        return wanted

    async def _decided(self, asks: Sequence[Ask], decide: Callable[[], Awaitable[Decision]]) -> Decision:
        if self._stopped:
            return undecided(self, asks)
        try:
            return await decide()
        except Exception as error:
            if isinstance(error, Misconfigured):
                raise
            self._note_defect()
            return undecided(self, asks)

    def charge_after(self, asks: Sequence[Ask]) -> None:
        """Charge up to 50 requests whose costs are known only now, such as the tokens of an answer.

        Each is charged to the limits that ``admit_request`` would charge, with its calls and all other costs,
        also past the limit: later requests are refused, and this is not. It takes no slots, and no request
        is counted as allowed. Without Redis, the pod charges its shares, and reports them to Redis later.
        Corrections of what was admitted are for ``settle``.

        From any thread, and never waits. Raises ``Misconfigured`` for invalid arguments, and nothing else.
        """
        wanted = check_asks(asks, self.configuration.snapshot.tuning.ipv6_prefix)
        admission = self._runtime.admission
        self._run_on_loop(partial(admission.charging.charge_after, admission.joint, wanted))
