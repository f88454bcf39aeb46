"""The paths of the sidecar: each is a question to the agent, or a report to it."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Annotated, Any, Protocol

import msgspec

from fuseboard.agent import Agent
from fuseboard.calling.trace import enter_request, leave_request
from fuseboard.contract import sidecar as contract
from fuseboard.contract.sidecar import (
    Accepted,
    AskCall,
    AskCheck,
    AskedSubject,
    AskExplanation,
    AskRequest,
    Finish,
    GiveBack,
    InvalidReport,
    Report,
)
from fuseboard.contract.sync import PermitCounters
from fuseboard.contract.words import Algorithm, Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Misconfigured, Refused
from fuseboard.serving.exchange import JSON, Answer, Request
from fuseboard.serving.shares import Uid, may_have_more
from fuseboard.sidecar import answers, openapi
from fuseboard.sidecar.access import TenantNames
from fuseboard.sidecar.bodies import UNREADABLE, read_json
from fuseboard.sidecar.operators import Operators
from fuseboard.sidecar.peers import Peers, Place
from fuseboard.sidecar.permits import Kept
from fuseboard.sidecar.reports import Reports
from fuseboard.subject import NO_SUBJECT, Ask, Subject

logger = logging.getLogger("fuseboard.sidecar")

#: Admissions that may wait at once. More get 503: no decision.
MAX_WAITING = 1000
#: The time from the end of a call until its permit ends, and the time of a call without a timeout.
GRACE_S, UNKNOWN_TIMEOUT_S = 5.0, 60.0
#: The longest time of a permit, which a request has without a concurrency limit, and that of a request.
LONGEST_S, HOLD_S = 600.0, 3600.0

#: The header of W3C Trace Context.
_TRACE = "traceparent"
_NO_TRACE = nullcontext()

_Read = tuple[tuple[Report, ...], tuple[InvalidReport, ...]]
_decode_reports = msgspec.json.Decoder(
    Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(min_length=1, max_length=contract.MAX_REPORTS)]
).decode
_decode_readable = msgspec.json.Decoder(
    Annotated[tuple[Report, ...], msgspec.Meta(min_length=1, max_length=contract.MAX_REPORTS)]
).decode
_decode_carried = msgspec.json.Decoder(
    Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=contract.MAX_CARRIED_REPORTS)]
).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

_Answering = Answer | Coroutine[Any, Any, Answer]


class Access(Protocol):
    def refuse(self, request: Request) -> Answer | None: ...


class Handler(Protocol):
    def handle(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]: ...


class Guarded:
    """An application behind one listener, whose access it checks first."""

    problem = staticmethod(answers.problem)

    def __init__(self, handler: Handler, access: Access) -> None:
        self._handler, self._access = handler, access

    def handle(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        return self._access.refuse(request) or self._handler.handle(request)


class Sidecar:
    """One agent, and what applications have of its decisions. Belongs to the loop of the agent."""

    def __init__(
        self,
        agent: Agent,
        *,
        tenants: TenantNames | None = None,
        most_waiting: int = MAX_WAITING,
        place: Place | None = None,
        fair: bool = False,
    ) -> None:
        """``fair`` divides the bounds among the users of the unix socket."""
        self._agent, self._tenants, self._most_waiting = agent, tenants, most_waiting
        #: The other workers; ``None`` if there are none.
        self.peers = None if place is None else Peers(place)
        permits, holds = ("p", "h") if place is None else (place.letters("p"), place.letters("h"))
        # An expired permit frees its slot and its probe. What was spent stays spent.
        self.permits = Kept[Permit](permits, lambda permit: agent.report(permit, Outcome.NEUTRAL), fair=fair)
        agent.sidecar_figures.permits = self._permit_counters
        # A limit frees the slots of an expired request itself, after its window.
        self.holds = Kept[Decision](holds, lambda decision: None, fair=fair)
        self.reports = Reports(agent, self.permits, self.peers)
        self.waiting = 0
        #: How many of them each user of the unix socket has; ``None`` unless the bounds are fair.
        self._waiting_of: Counter[Uid] | None = Counter() if fair else None
        #: Admissions that got no decision, because too many waited.
        self.busy = 0
        #: Questions about tenants that the application may not use.
        self.foreign = 0
        #: The signal to stop has come. Requests are decided as before.
        self.stopping = False
        self.operators = Operators(agent)
        self._reads: dict[str, Callable[[], Answer]] = {
            contract.DEPENDENCIES_PATH: self.operators.dependencies,
            openapi.PATH: lambda: Answer(200, openapi.encoded()),
        }
        routes: dict[str, Callable[[Any, Request], _Answering]] = {
            contract.CALLS_PATH: self._call,
            contract.CHECK_PATH: self._check,
            contract.EXPLAIN_PATH: self._explain,
            contract.FINISH_PATH: self._finish,
            contract.GIVE_BACK_PATH: self._give_back,
            contract.REPORTS_PATH: self._report,
            contract.REQUESTS_PATH: self._request,
        }
        decoders: dict[str, Callable[[bytes], Any]] = {
            path: msgspec.json.Decoder(asked).decode for path, (asked, _) in contract.OPERATIONS.items()
        }
        decoders[contract.CALLS_PATH] = partial(self._read_call, decoders[contract.CALLS_PATH])
        decoders[contract.REPORTS_PATH] = self._read_reports
        self._routes = {path: (decoders[path], routes[path]) for path in contract.OPERATIONS}

    def handle(self, request: Request) -> _Answering:
        if (read := self._reads.get(request.path)) is not None:
            return read() if request.method == "GET" else answers.wrong_method("GET")
        route = self._routes.get(request.path)
        if route is None:
            known = ", ".join([*self._routes, *self._reads])
            return answers.problem(404, "unknown-path", f"the sidecar answers {known}")
        if request.method != "POST":
            return answers.wrong_method("POST")
        kind = request.headers.get("content-type", "")
        if kind != JSON and kind.partition(";")[0].strip().lower() != JSON:
            return answers.problem(415, "not-json", f"send content-type: {JSON}")
        decode, answer = route
        try:
            asked = read_json(decode, request.body)
        except UNREADABLE as error:
            return answers.problem(400, "malformed", str(error))
        return answer(asked, request)

    def keep_permit(self, permit: Permit, uid: Uid = None) -> tuple[str, float]:
        """The id of a permit, and the seconds in which its report must come."""
        expires_s = _expires_s(permit)
        return self.permits.keep(permit, expires_s, uid), expires_s

    def sweep(self) -> None:
        self.permits.sweep()
        self.holds.sweep()

    def _permit_counters(self) -> PermitCounters:
        kept = self.permits
        return PermitCounters(issued=kept.issued, expired=kept.expired, displaced=kept.displaced)

    async def stop(self) -> None:
        """Free all slots and probes now, not when they expire. What was spent stays spent."""
        for permit in self.permits.take_all():
            self._agent.report(permit, Outcome.NEUTRAL)
        for decision in self.holds.take_all():
            self._agent.finish(decision)
        await self.operators.stop()
        if self.peers is not None:
            await self.peers.stop()

    def _read_reports(self, body: bytes) -> _Read:
        try:
            return _decode_readable(body), ()
        except msgspec.ValidationError:
            return self.reports.read(_decode_reports(body))

    def _read_call(self, decode: Callable[[bytes], AskCall], body: bytes) -> AskCall:
        """An admission is not refused for a report beside it."""
        try:
            return decode(body)
        except msgspec.ValidationError:
            members = _decode_members(body)
            if "reports" not in members:
                raise
            carried = _decode_carried(members.pop("reports"))
            asked = decode(msgspec.json.encode(members))
            reports, invalid = self.reports.read(carried)
            logger.warning("sidecar.invalid_reports: %d with a call: %s", len(invalid), invalid[:1])
            return msgspec.structs.replace(asked, reports=reports)

    def _call(self, asked: AskCall, request: Request) -> _Answering:
        self.reports.take(asked.reports)
        return self._refuse_tenant(asked.tenant or None) or self._admit(
            self._admit_call(asked, request.uid), request
        )

    def _request(self, asked: AskRequest, request: Request) -> _Answering:
        return self._refuse_tenant(asked.tenant) or self._admit(
            self._admit_request(asked, request.uid), request
        )

    def _check(self, asked: AskCheck, request: Request) -> _Answering:
        return self._refuse_tenant(asked.tenant) or self._admit(self._checked(asked), request)

    async def _checked(self, asked: AskCheck) -> Answer:
        ask = Ask(
            tenant=asked.tenant,
            cost=asked.cost,
            costs=asked.costs or None,
            subject=_subject_of(asked.subject),
        )
        (part,) = (await self._agent.check_together([ask])).parts
        return answers.checked(part)

    def _refuse_tenant(self, tenant: str | None) -> Answer | None:
        """The answer about a tenant that the application may not use. Callers without a tenant use none."""
        if self._tenants is None or tenant is None or self._tenants.include(tenant):
            return None
        self.foreign += 1
        return answers.problem(403, "tenant", "no pattern of --tenants has this tenant")

    async def _admit(self, admission: Coroutine[Any, Any, Answer], request: Request) -> Answer:
        if not self._may_wait(request.uid):
            self.busy += 1
            admission.close()
            return answers.problem(503, "busy", f"{self.waiting} admissions wait already")
        self._count_waiting(request.uid, 1)
        try:
            if _TRACE not in request.headers:
                return await admission
            # The trace is for this request alone, and so must be in a task.
            await asyncio.sleep(0)
            with _trace_of(request):
                return await admission
        except Refused as refused:
            with _trace_of(request):
                return answers.refused(refused.decision)
        except Misconfigured as error:
            return answers.problem(400, "invalid", str(error))
        finally:
            self._count_waiting(request.uid, -1)
            admission.close()  # it has not begun if the caller left before its task did

    def _may_wait(self, uid: Uid) -> bool:
        most, of_users = self._most_waiting, self._waiting_of
        if of_users is not None and not may_have_more(of_users[uid], self.waiting, most):
            return False
        return self.waiting < most

    def _count_waiting(self, uid: Uid, change: int) -> None:
        self.waiting += change
        if self._waiting_of is not None:
            self._waiting_of[uid] += change
            if not self._waiting_of[uid]:
                del self._waiting_of[uid]

    async def _admit_call(self, asked: AskCall, uid: Uid) -> Answer:
        permit = await self._agent.admit_call(
            asked.dependency,
            tenant=asked.tenant,
            cost=asked.cost,
            costs=asked.costs or None,
            spend_quota=asked.spend_quota,
            wait_s=None if asked.wait_ms is None else asked.wait_ms / 1000,
            tier=asked.tier,
            deadline_s=_deadline_s(asked),
        )
        permit_id, expires_s = self.keep_permit(permit, uid)
        # A call whose caller has just left is not made.
        return answers.allowed_call(
            permit, permit_id, expires_s, lambda: self._end_unused(self.permits.take(permit_id))
        )

    async def _admit_request(self, asked: AskRequest, uid: Uid) -> Answer:
        decision = await self._agent.admit_request(
            asked.tenant,
            asked.cost,
            costs=asked.costs or None,
            subject=_subject_of(asked.subject),
            wait_s=self._wait_s(asked),
        )
        if not decision.allowed:
            return answers.refused(decision)
        hold = None
        # ``Decision.holds_slots`` is true of all without Redis: those would displace the ones that matter.
        if asked.costs or any(charge.demand.holds_slots for charge in decision.charges):
            hold = self.holds.keep(decision, _hold_s(decision), uid)
        # A request whose caller has just left is not served.
        return answers.allowed_request(decision, hold, lambda: self._take_back(decision, hold))

    def _take_back(self, decision: Decision, hold: str | None) -> None:
        if hold is None or self.holds.take(hold) is not None:
            self._agent.give_back(decision)

    def _wait_s(self, asked: AskRequest) -> float | None:
        wait_s = None if asked.wait_ms is None else asked.wait_ms / 1000
        deadline_s = _deadline_s(asked)
        if deadline_s is None:
            return wait_s
        usual_s = self._agent.longest_wait_s(tenant=asked.tenant) if wait_s is None else wait_s
        return min(usual_s, deadline_s)

    def _report(self, read: _Read, request: Request) -> Answer:
        reports, invalid = read
        with _trace_of(request):
            accepted, unknown = self.reports.take(reports)
        return answers.json_answer(Accepted(accepted=accepted, unknown=unknown, invalid=invalid))

    def _finish(self, asked: Finish, request: Request) -> Answer:
        decision = self.holds.take(asked.hold)
        if decision is None:
            return self._hand_on(asked.hold, contract.FINISH_PATH, asked)
        estimates: dict[str, int] = {}
        for charge in decision.charges:
            estimates |= charge.demand.amounts()
        for measure, amount in self.reports.bounded(asked.settle, estimates).items():
            self._agent.settle(decision, measure, amount)
        self._agent.finish(decision)
        return answers.json_answer(Accepted(accepted=1))

    def _give_back(self, asked: GiveBack, request: Request) -> Answer:
        taken: Permit | Decision | None
        taken = self.permits.take(asked.permit) if asked.permit else self.holds.take(asked.hold or "")
        if taken is None:
            return self._hand_on(asked.permit or asked.hold or "", contract.GIVE_BACK_PATH, asked)
        self._end_unused(taken)
        return answers.json_answer(Accepted(accepted=1))

    def _hand_on(self, name: str, path: str, asked: Finish | GiveBack) -> Answer:
        """The answer to an end of what is not here: another worker may have it."""
        if self.peers is not None and self.peers.hand_on(name, path, asked):
            return answers.json_answer(Accepted(accepted=1))
        return answers.json_answer(Accepted(accepted=0, unknown=(name,)))

    def _explain(self, asked: AskExplanation, request: Request) -> _Answering:
        return self._refuse_tenant(asked.tenant) or self._explained(asked)

    async def _explained(self, asked: AskExplanation) -> Answer:
        try:
            return await self.operators.explain(asked, _subject_of(asked.subject))
        except Misconfigured as error:
            return answers.problem(400, "invalid", str(error))

    def _end_unused(self, taken: Permit | Decision | None) -> None:
        if taken is not None:
            self._agent.give_back(taken)


def _subject_of(asked: AskedSubject | None) -> Subject:
    return NO_SUBJECT if asked is None else Subject(**msgspec.structs.asdict(asked))


def _deadline_s(asked: AskCall | AskRequest) -> float | None:
    return None if asked.deadline_ms is None else min(asked.deadline_ms, contract.MAX_DEADLINE_MS) / 1000


def _expires_s(permit: Permit) -> float:
    """Until when the application must have reported."""
    longest_s = answers.longest_s(permit)
    if longest_s is None:
        longest_s = UNKNOWN_TIMEOUT_S if permit.parts is None else LONGEST_S
    return min(longest_s + GRACE_S, LONGEST_S)


def _hold_s(decision: Decision) -> float:
    """The slots of a request end by themselves after the longest of these windows."""
    windows = [limit.window_ms for limit in decision.limits if limit.algorithm is Algorithm.CONCURRENCY]
    return min(max([LONGEST_S, *(window / 1000 for window in windows)]), HOLD_S)


def _trace_of(request: Request) -> AbstractContextManager[None]:
    """Refusals and failed calls have the trace of the application."""
    traceparent = request.headers.get(_TRACE)
    return _NO_TRACE if traceparent is None else _in_trace(traceparent)


@contextmanager
def _in_trace(traceparent: str) -> Iterator[None]:
    token = enter_request(lambda: traceparent)
    try:
        yield
    finally:
        leave_request(token)
