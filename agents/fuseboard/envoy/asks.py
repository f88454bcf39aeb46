"""The questions of a request of Envoy to the agent, prepared once for all requests with the same bytes."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from fuseboard.agent_api.arguments import INVALID
from fuseboard.agent_api.asks import MAX_ASKS, prepare
from fuseboard.contract.descriptors import (
    Charge,
    DescriptorRules,
    Entry,
    Headers,
    Match,
    Means,
    Verdict,
    counted_key,
    with_requests,
)
from fuseboard.contract.keys import own_limit
from fuseboard.contract.limits import Limit
from fuseboard.contract.words import MAX_LIMIT, Period
from fuseboard.envoy import rls_pb2 as pb
from fuseboard.subject import Ask, Subject

#: Requests whose questions are remembered, and the bytes of such a request.
MAX_REMEMBERED = 4_096
MAX_REMEMBERED_BYTES = 1_024

CALLS = "calls"
#: The remaining hits of a rule without a limit, and the largest figure that an answer can have.
UNLIMITED = 2**32 - 1

_UNITS = {1_000: pb.SECOND, 60_000: pb.MINUTE, 3_600_000: pb.HOUR, 86_400_000: pb.DAY, 604_800_000: pb.WEEK}
_PERIODS = {Period.HOUR: pb.HOUR, Period.DAY: pb.DAY, Period.WEEK: pb.WEEK, Period.MONTH: pb.MONTH}


class InvalidMessage(Exception):
    """The bytes are no message, or the message asks for nothing. The text says what is wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A call to a dependency, and the arguments of ``Agent.admit_call``."""

    dependency: str
    tenant: str
    cost: int
    costs: dict[str, int] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The questions to the agent. Places are those of the descriptors in the request, from 0."""

    domain: str
    #: The headers of the answer, besides those of a refusal.
    headers: Headers
    descriptors: tuple[tuple[Entry, ...], ...]
    matches: tuple[Match, ...]
    #: The own limit of each descriptor; ``None`` where other limits or none decide.
    limits: tuple[Limit | None, ...]
    calls: tuple[tuple[int, Call], ...]
    #: The requests that are decided together, and charged.
    asks: tuple[Ask, ...]
    ask_places: tuple[int, ...]
    #: The requests that are decided together, and not charged.
    checks: tuple[Ask, ...]
    check_places: tuple[int, ...]
    #: The requests that are charged after the work.
    after: tuple[Ask, ...]
    used: tuple[Call, ...]
    #: The counters of limits in shadow mode, by the places of their descriptors.
    shadows: Mapping[int, bytes]
    #: Descriptors that would give hits back, and those that no rule decides.
    negative: int
    unmatched: int
    #: The answer if they are allowed. The figures are written before each use: most of it is always the same.
    message: pb.RateLimitResponse

    #: ``False`` for each descriptor.
    nowhere: Sequence[bool]

    @property
    def decides(self) -> bool:
        """Whether the agent has anything to decide or to charge."""
        return bool(self.calls or self.asks or self.checks or self.after or self.used)


class Questions:
    """Reads requests. Those with the same bytes ask for the same, until the rules change."""

    def __init__(self, environment: str, most: int = MAX_REMEMBERED) -> None:
        self._environment, self._most = environment, most
        self._rules: DescriptorRules | None = None
        #: The least recently used are dropped first.
        self._known: OrderedDict[bytes, Asked] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def read(self, rules: DescriptorRules, body: bytes) -> Asked:
        """The questions of the bytes of a ``RateLimitRequest``. Raises ``InvalidMessage``."""
        if rules is not self._rules:
            self._rules = rules
            self._known.clear()
        asked = self._known.get(body)
        if asked is not None:
            self._known.move_to_end(body)
            return asked
        asked = read(rules, self._environment, body)
        if len(body) <= MAX_REMEMBERED_BYTES:
            self._known[body] = asked
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return asked


def read(rules: DescriptorRules, environment: str, body: bytes) -> Asked:
    """See ``Questions.read``."""
    try:
        request = pb.RateLimitRequest.FromString(body)
    except DecodeError as error:
        raise InvalidMessage(f"this is no RateLimitRequest: {error}") from None
    if not request.domain:
        raise InvalidMessage("the request has no domain")
    if not 1 <= len(request.descriptors) <= MAX_ASKS:
        raise InvalidMessage(f"a request has 1 to {MAX_ASKS} descriptors, not {len(request.descriptors)}")
    domain = _text(request.domain)
    descriptors = tuple(
        [
            tuple([(_text(entry.key), _text(entry.value)) for entry in descriptor.entries])
            for descriptor in request.descriptors
        ]
    )
    matches = rules.match(domain, descriptors)
    usual = request.hits_addend or 1
    hits = [
        min(descriptor.hits_addend.value if descriptor.HasField("hits_addend") else usual, MAX_LIMIT)
        for descriptor in request.descriptors
    ]
    limits = _limits(matches, request.descriptors)
    reader = _Reader(domain, rules.headers(domain), environment, matches, limits)
    return reader.asked(
        descriptors, hits, [descriptor.is_negative_hits for descriptor in request.descriptors]
    )


class _Reader:
    """Sorts the descriptors by how they are decided."""

    def __init__(
        self,
        domain: str,
        headers: Headers,
        environment: str,
        matches: Sequence[Match],
        limits: Sequence[Limit | None],
    ) -> None:
        self._domain, self._headers, self._environment = domain, headers, environment
        self._matches, self._limits = tuple(matches), tuple(limits)
        self._shadows: dict[int, bytes] = {}
        self._calls: list[tuple[int, Call]] = []
        self._asks: list[tuple[int, Ask]] = []
        self._checks: list[tuple[int, Ask]] = []
        self._after: list[Ask] = []
        self._used: list[Call] = []

    def asked(
        self, descriptors: tuple[tuple[Entry, ...], ...], hits: Sequence[int], negative: Sequence[bool]
    ) -> Asked:
        for place, (match, count) in enumerate(zip(self._matches, hits, strict=True)):
            # The service does not know which client had spent hits, so a stranger's word gives none back.
            if not negative[place]:
                self._add(place, match, count)
        return Asked(
            domain=self._domain,
            headers=self._headers,
            descriptors=descriptors,
            matches=self._matches,
            limits=self._limits,
            calls=tuple(self._calls),
            asks=_prepared(self._asks),
            ask_places=tuple([place for place, _ in self._asks]),
            checks=_prepared(self._checks),
            check_places=tuple([place for place, _ in self._checks]),
            after=tuple(self._after),
            used=tuple(self._used),
            shadows=self._shadows,
            negative=sum(negative),
            nowhere=[False] * len(self._matches),
            message=without_figures(self._matches),
            unmatched=sum(match.verdict is Verdict.UNMATCHED for match in self._matches),
        )

    def _add(self, place: int, match: Match, hits: int) -> None:
        rule = match.rule
        if rule is None or match.verdict not in (Verdict.LIMIT, Verdict.REQUEST, Verdict.CALL):
            return
        if match.verdict is Verdict.CALL:
            self._add_call(place, match, hits)
            return
        # A check asks about one hit more.
        ask = self._ask(place, match, max(1, hits))
        if ask is None:
            return
        if not hits:
            self._checks.append((place, ask))
        elif rule.charge is Charge.AFTER:
            self._after.append(ask)
        else:
            self._asks.append((place, ask))

    def _add_call(self, place: int, match: Match, hits: int) -> None:
        """A call is a permit, so it cannot be checked without one."""
        rule = match.rule
        if rule is None or not hits:
            return
        tenant = match.named.get(Means.TENANT)
        call = Call(
            dependency=rule.dependency,
            # Without a name, the quotas of a tenant would not count the call.
            tenant="" if tenant is None else tenant or INVALID,
            cost=hits if rule.measure == CALLS else 1,
            costs=None if rule.measure == CALLS else {rule.measure: hits},
        )
        if rule.charge is Charge.BEFORE:
            self._calls.append((place, call))
        elif call.costs is not None:
            self._used.append(call)

    def _ask(self, place: int, match: Match, hits: int) -> Ask | None:
        """``None`` if no limit can count the descriptor."""
        rule, limit = match.rule, self._limits[place]
        measure = CALLS if rule is None else rule.measure
        # Hits that are tokens are no calls: the request itself has another descriptor.
        cost, costs = (hits, None) if measure == CALLS else (0, {measure: hits})
        if limit is not None:
            key = counted_key(self._domain, match)
            if limit.shadow:
                self._shadows[place] = own_limit(self._environment, key, limit.name).encode()
            return Ask(limit=limit, key=key, cost=cost, costs=costs)
        named = match.named
        tenant = named.get(Means.TENANT)
        subject = Subject(
            user=_id(named, Means.USER),
            ip=_id(named, Means.IP),
            api_key=_id(named, Means.API_KEY),
            endpoint=named.get(Means.ENDPOINT, ""),
        )
        if tenant is None and subject == Subject():
            return None
        return Ask(tenant=tenant, subject=subject, cost=cost, costs=costs)


def _prepared(placed: Sequence[tuple[int, Ask]]) -> tuple[Ask, ...]:
    return prepare([ask for _, ask in placed]) if placed else ()


def without_figures(matches: Sequence[Match]) -> pb.RateLimitResponse:
    """The answer to descriptors that are allowed, with what is known without a question."""
    message = pb.RateLimitResponse(overall_code=pb.RateLimitResponse.OK)
    for match in matches:
        status = message.statuses.add(code=pb.RateLimitResponse.OK)
        if match.verdict is Verdict.UNLIMITED:
            status.limit_remaining = UNLIMITED
    return message


def _id(named: dict[Means, str], means: Means) -> str:
    """An empty value is counted like an invalid one: it must not escape a limit."""
    value = named.get(means)
    return "" if value is None else value or INVALID


def _limits(matches: Sequence[Match], descriptors: Sequence[pb.RateLimitDescriptor]) -> list[Limit | None]:
    """The limit of each descriptor that has its own. Descriptors with one counter have the smallest."""
    smallest: dict[tuple[str, ...], Limit] = {}
    for match, descriptor in zip(matches, descriptors, strict=True):
        if match.verdict is Verdict.LIMIT:
            limit = _limit(match, descriptor)
            known = smallest.get(match.counted)
            if known is None or limit.limit < known.limit:
                smallest[match.counted] = limit
    return [smallest[match.counted] if match.verdict is Verdict.LIMIT else None for match in matches]


def _limit(match: Match, descriptor: pb.RateLimitDescriptor) -> Limit:
    """The limit of the rule, or the one that the request states, if the rule accepts it."""
    rule = match.rule
    if rule is None or rule.limit is None:
        raise ValueError("a descriptor that a limit decides has a rule with a limit")
    stated = descriptor.limit
    if not rule.accepts_override or not descriptor.HasField("limit") or stated.unit != unit_of(rule.limit):
        return rule.limit
    return with_requests(rule.limit, min(stated.requests_per_unit, rule.accepts_override))


def unit_of(limit: Limit) -> pb.Unit:
    """The unit of Envoy with the length of the limit's window; ``UNKNOWN_UNIT`` if there is none."""
    return unit(limit.window_ms, limit.period)


def unit(window_ms: int, period: Period | None) -> pb.Unit:
    """See ``unit_of``."""
    if period is not None:
        return _PERIODS[period]
    return _UNITS.get(window_ms, pb.UNKNOWN_UNIT)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
