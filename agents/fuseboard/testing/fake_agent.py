"""An agent without Redis, configuration or heartbeats. Blocks, retries and fallbacks are the real ones."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, Unpack

from msgspec import structs

from fuseboard.admission.call_guard import SOONEST_S
from fuseboard.agent_api.arguments import (
    check_actual,
    check_call_options,
    check_name,
    check_request_options,
    harmless,
    usage_of,
)
from fuseboard.agent_api.asks import check_asks
from fuseboard.agent_api.blocks import blocking_block
from fuseboard.agent_api.context_managers import Block, ContextManagers
from fuseboard.agent_api.decorators import Blocks
from fuseboard.agent_api.loop_agent import LoopAgent
from fuseboard.agent_api.options import CallOptions, Neutral, list_options
from fuseboard.agent_api.retry_api import RetryLoops
from fuseboard.agent_api.threads import Question, ThreadCalls, refuse_loops
from fuseboard.calling import deadline
from fuseboard.calling.current_chain import current_chain
from fuseboard.calling.outcomes import judge_permitted
from fuseboard.calling.retries import Retries
from fuseboard.contract.protection import Retry
from fuseboard.contract.sync import BreakerView
from fuseboard.contract.words import DEFAULT_ENVIRONMENT, Mode, Outcome, Reason
from fuseboard.decision import Amounts, Decision, Permit
from fuseboard.errors import Misconfigured, Refused
from fuseboard.protection.pressure import Pressure
from fuseboard.subject import NO_SUBJECT, Ask, Subject
from fuseboard.testing.fake_backlog import FakeBacklogs
from fuseboard.testing.fake_locks import FakeLocks
from fuseboard.testing.fake_once import FakeEvents
from fuseboard.testing.fake_retries import FakeRetries
from fuseboard.testing.scripted_results import Ending, ScriptedRefusal, spend
from fuseboard.testing.time import ManualClock

D = TypeVar("D", Decision, Permit)


class FakeAgent(FakeLocks, FakeEvents, FakeBacklogs, ContextManagers):
    """Admits everything until a test says otherwise.

    ``retry`` is the policy of every dependency. The fake's budget allows every retry until ``budget``.
    """

    def __init__(self, *, clock: ManualClock | None = None, retry: Retry | None = None) -> None:
        clock = clock if clock is not None else ManualClock()
        FakeLocks.__init__(self, clock)
        FakeEvents.__init__(self, clock)
        FakeBacklogs.__init__(self)
        self.retry_policy = retry if retry is not None else Retry(idempotent=True)
        #: The dependencies of admitted calls, in order.
        self.calls: list[str] = []
        #: The refusals, in order.
        self.refusals: list[Decision] = []
        #: How admitted calls ended, in order: dependency and outcome.
        self.outcomes: list[tuple[str, Outcome]] = []
        #: Usage that was charged without a permit, in order: the name, and amounts by measure.
        self.charges: list[tuple[str, dict[str, int]]] = []
        #: Requests that were charged after they were made, in order.
        self.charged: list[Ask] = []
        #: How long retries waited, if ``no_sleep`` is in force.
        self.waits: list[float] = []
        self._refused: dict[str, ScriptedRefusal] = {}
        self._shed: dict[str, ScriptedRefusal] = {}
        self._queues: dict[str, float] = {}
        self._endings: dict[str, deque[Ending]] = {}
        self._held: dict[str, int] = {}
        self._retries = FakeRetries(lambda: self.retry_policy, self.clock)

    # Methods that script the fake

    def refuse(
        self, dependency: str, reason: Reason, *, retry_after_s: float = 1.0, times: int | None = None
    ) -> None:
        """Refuse calls to the dependency, always or so often."""
        check_name("a dependency", dependency)
        self._refused[dependency] = ScriptedRefusal(reason, retry_after_s, times)

    def open(self, dependency: str, *, retry_after_s: float = 30.0, times: int | None = None) -> None:
        """The breaker is open."""
        self.refuse(dependency, Reason.BREAKER_OPEN, retry_after_s=retry_after_s, times=times)

    def full(self, dependency: str, *, retry_after_s: float = SOONEST_S, times: int | None = None) -> None:
        """No slot of the bulkhead is free. A pod says when one will be: after at least 1 s."""
        self.refuse(dependency, Reason.BULKHEAD_FULL, retry_after_s=retry_after_s, times=times)

    def admit(self, dependency: str) -> None:
        """Admit calls again, at once."""
        self._refused.pop(dependency, None)
        self._queues.pop(dependency, None)

    def shed(self, tenant: str, *, times: int | None = None) -> None:
        """Shed the requests of the tenant."""
        self._shed[tenant] = ScriptedRefusal(Reason.SHED, 1.0, times)

    def queue(self, dependency: str, *, wait_s: float) -> None:
        """Calls wait so long for a slot, by the clock."""
        self._queues[dependency] = wait_s

    def budget(self, retries: int) -> None:
        """So many retries are allowed from now on."""
        self._retries.left = retries

    def next(self, dependency: str, outcome: Outcome, *, after_s: float = 0.0) -> None:
        """The next block ends so after this time, unless it raises. A failure raises ``ConnectionError``.

        That is after the last line of the block, so an attempt that returns from inside is not repeated.
        """
        self._endings.setdefault(dependency, deque()).append(Ending(outcome, after_s))

    def timeout(self, dependency: str, *, after_s: float = 0.0) -> None:
        """The next call runs into its timeout."""
        self._endings.setdefault(dependency, deque()).append(Ending(Outcome.FAILURE, after_s, late=True))

    # Methods that a test reads

    def held(self, dependency: str) -> int:
        """Permits that are not reported."""
        return self._held.get(dependency, 0)

    def dependencies(self) -> tuple[str, ...]:
        return tuple(self._held)

    @property
    def retried(self) -> int:
        """Retries that were made."""
        return sum(totals.retries for totals in self._retries.totals().values())

    # Methods of ``fuseboard.Agent``

    @property
    def running(self) -> bool:
        return True

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def retries(self) -> Retries:
        return self._retries

    async def admit_request(
        self,
        tenant: str | None,
        cost: int = 1,
        *,
        costs: Mapping[str, int] | None = None,
        subject: Subject = NO_SUBJECT,
        wait_s: float | None = None,
    ) -> Decision:
        check_request_options({"costs": costs, "wait_s": wait_s})
        if tenant is None and harmless(subject) == NO_SUBJECT:
            raise Misconfigured("a caller without a tenant is decided by its address or key: pass a subject")
        if (refusal := spend(self._shed, tenant or "")) is not None:
            return self._note(refusal, tenant=tenant or "")
        return self.allow_unasked(tenant=tenant or "")

    async def admit_together(self, asks: Sequence[Ask]) -> Decision:
        check_asks(asks)
        parts = [
            self.allow_unasked()
            if ask.limit is not None
            else await self.admit_request(ask.tenant, subject=ask.subject)
            for ask in asks
        ]
        refused = next((part for part in parts if not part.allowed), None)
        return structs.replace(refused or self.allow_unasked(), parts=tuple(parts))

    async def check_together(self, asks: Sequence[Ask]) -> Decision:
        """Refuses what ``admit_together`` would refuse. It uses up no refusal, and adds none to
        ``refusals``.
        """
        check_asks(asks)
        parts = [
            self._refusal(self._shed[tenant], tenant=tenant)
            if (tenant := ask.tenant or "") in self._shed
            else self.allow_unasked(tenant=tenant)
            for ask in asks
        ]
        refused = next((part for part in parts if not part.allowed), None)
        return structs.replace(refused or self.allow_unasked(), parts=tuple(parts))

    async def admit_call(
        self,
        dependency: str,
        *,
        tenant: str = "",
        cost: int = 1,
        costs: Mapping[str, int] | None = None,
        spend_quota: bool = False,
        spend_costs: bool = False,
        wait_s: float | None = None,
        tier: str | None = None,
        deadline_s: float | None = None,
    ) -> Permit:
        check_name("a dependency", dependency)
        check_call_options({"costs": costs, "wait_s": wait_s, "tier": tier, "deadline_s": deadline_s})
        until = deadline.until()
        if deadline_s is not None:
            until = min(self.clock() + deadline_s, until if until is not None else math.inf)
        if (refusal := spend(self._refused, dependency)) is not None:
            raise Refused(self._note(refusal, tenant=tenant, dependency=dependency))
        wait = self._queues.get(dependency, 0.0)
        if until is not None and self.clock() + wait >= until:
            self.clock.advance(max(0.0, until - self.clock()))
            late = ScriptedRefusal(Reason.QUEUE_TIMEOUT, 1.0, None)
            raise Refused(self._note(late, tenant=tenant, dependency=dependency))
        self.clock.advance(wait)
        permit = self.admit_job(dependency, tenant)
        if until is not None:
            permit.timeout_s = until - self.clock()
        if (chain := current_chain()) is not None:
            chain.append(permit)
        return permit

    def admit_job(self, dependency: str, tenant: str) -> Permit:
        """Hand out a job like a backlog: its call is admitted."""
        self.calls.append(dependency)
        self._held[dependency] = self._held.get(dependency, 0) + 1
        decision = self.allow_unasked(tenant=tenant, dependency=dependency)
        return Permit(made=decision, dependency=dependency, generation=0, settler=self.settle)

    def holds_jobs(self, dependency: str) -> bool:
        return dependency in self._refused

    def refuse_job(self, dependency: str, tenant: str, refusal: ScriptedRefusal) -> NoReturn:
        raise Refused(self._note(refusal, tenant=tenant, dependency=dependency))

    @list_options()
    def call(self, dependency: str, *, neutral: Neutral = (), **options: Unpack[CallOptions]) -> Block:
        block = super().call(dependency, neutral=neutral, **options)
        return _Ended(self, block)

    def report(
        self, permit: Permit, outcome: Outcome, elapsed_s: float | None = None, *, cooldown_ms: int = 0
    ) -> None:
        if not permit.reported:
            permit.reported = True
            self._held[permit.dependency] -= 1
            self.outcomes.append((permit.dependency, outcome))

    def report_error(self, permit: Permit, error: BaseException, neutral: Neutral = ()) -> None:
        self.report(permit, judge_permitted(permit, error, neutral)[0])

    def settle(self, decision: Decision, measure: str, actual: int) -> None:
        """Costs nothing here."""
        check_actual(measure, actual)

    def charge(
        self,
        name: str,
        usage: Amounts | Mapping[str, int],
        *,
        tenant: str = "",
        batch: bool = False,
        as_dependency: bool = False,
    ) -> None:
        """See ``charges``."""
        check_name("a dependency or a model", name)
        self.charges.append((name, usage_of(usage)))

    def charge_after(self, asks: Sequence[Ask]) -> None:
        """See ``charged``."""
        check_asks(asks)
        self.charged.extend(asks)

    def charge_again(self, permit: Permit, times: int) -> None:
        """Costs nothing here."""
        check_actual("repetitions", times)

    def finish(self, decision: Decision) -> None:
        """A request holds nothing here."""

    def give_back(self, taken: Decision | Permit) -> None:
        if isinstance(taken, Permit):
            self.report(taken, Outcome.NEUTRAL)

    def longest_wait_s(self, dependency: str = "", *, tenant: str | None = None) -> float:
        return 0.0

    def queue_timeout_s(self, dependency: str) -> float | None:
        return None

    def allow_unasked(self, *, tenant: str = "", dependency: str = "") -> Decision:
        return Decision(allowed=True, tenant=tenant, dependency=dependency, server="fake")

    def permit_unasked(self, dependency: str) -> Permit:
        decision = self.allow_unasked(dependency=dependency)
        return Permit(made=decision, dependency=dependency, generation=0, reported=True, settler=self.settle)

    def permit_late(self, dependency: str) -> Permit:
        return self.permit_unasked(dependency)

    def end(self, permit: Permit) -> None:
        """The block of this permit ends well, unless the test said something else."""
        endings = self._endings.get(permit.dependency)
        if not endings:
            return
        ending = endings.popleft()
        self.clock.advance(ending.after_s)
        if ending.late:
            raise TimeoutError("late")
        if ending.outcome is Outcome.FAILURE:
            raise ConnectionError("failed")
        self.report(permit, ending.outcome)

    # Start and stop like ``fuseboard.Agent``, and the methods that integrations call

    async def start(self) -> None:
        """There is nothing to start."""

    async def stop(self) -> None:
        """There is nothing to stop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def soon(self, what: Callable[[], None]) -> None:
        what()

    def timeout_s(self, dependency: str, tier: str | None = None) -> float | None:
        return None

    def ready(self) -> bool:
        return True

    def readiness(self) -> tuple[bool, str]:
        return True, ""

    @property
    def mode(self) -> Mode:
        return Mode.SHARED

    def pressure(self) -> Pressure:
        return Pressure()

    def views(self) -> tuple[BreakerView, ...]:
        return ()

    def refused_for_s(self, dependency: str) -> float:
        return 0.0

    def resilience(self) -> dict[str, Any]:
        """The keys that a pod has before anything protects it."""
        return {
            "server": "fake",
            "service": "default",
            "environment": DEFAULT_ENVIRONMENT,
            "revision": 0,
            "mode": str(self.mode),
            "ready": True,
            "not_ready_because": "",
            "breakers": {},
            "dependencies": {},
        }

    def enter_request(
        self, tenant: str | None, subject: Subject = NO_SUBJECT, method: str = "", path: str = ""
    ) -> Decision | None:
        """Refuses the requests of ``shed``. The fake measures nothing, so there is no ``ServedRequest``."""
        refusal = spend(self._shed, tenant or "")
        return self._note(refusal, tenant=tenant or "") if refusal is not None else None

    # Methods for functions that block

    def _blocks(self, name: str) -> Blocks:
        return getattr(self, name), getattr(_Threads(self), name)

    def _retry_loops(self) -> RetryLoops:
        return self.retrying, _Threads(self).retrying

    def _note(self, refusal: ScriptedRefusal, *, tenant: str = "", dependency: str = "") -> Decision:
        decision = self._refusal(refusal, tenant=tenant, dependency=dependency)
        self.refusals.append(decision)
        return decision

    @staticmethod
    def _refusal(refusal: ScriptedRefusal, *, tenant: str = "", dependency: str = "") -> Decision:
        return Decision(
            allowed=False,
            reason=refusal.reason,
            retry_after_ms=int(refusal.retry_after_s * 1000),
            rule=dependency or tenant,
            tenant=tenant,
            dependency=dependency,
            server="fake",
        )


class _Ended(Block):
    """A block that ends as the test said."""

    def __init__(self, agent: FakeAgent, block: Block) -> None:
        self._agent, self._block = agent, block

    def _recreate_cm(self) -> "_Ended":
        return _Ended(self._agent, self._block._recreate_cm())

    async def __aenter__(self) -> Permit:
        self._permit = await self._block.__aenter__()
        return self._permit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self._agent.end(self._permit)
            except (ConnectionError, TimeoutError) as made:
                await self._block.__aexit__(type(made), made, None)
                raise
        await self._block.__aexit__(kind, error, trace)


class _Threads(ThreadCalls):
    """Blocks of functions in threads. They need no loop, because the fake waits for nothing."""

    def __init__(self, agent: FakeAgent) -> None:
        super().__init__(lambda: agent)
        self._fake = agent

    def _ask(self, agent: LoopAgent, question: Question[D]) -> D:
        refuse_loops()
        return asyncio.run(question.ask())

    @blocking_block
    def call(self, dependency: str, **options: Any) -> Iterator[Permit]:
        with super().call(dependency, **options) as permit:
            yield permit
            self._fake.end(permit)
