"""One pod in virtual time, in front of a Redis that answers when the test wants it to."""

import asyncio
import selectors
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import msgspec

from fuseboard.admission.admission import Admission
from fuseboard.batching.redis_question import ADMITS, COOLING_DOWN, FORCED_OPEN, OPEN, PROBES
from fuseboard.breaker.fleet_breaker import FleetBreaker
from fuseboard.composition import compose_admission
from fuseboard.contract.policy import BreakerPolicy, Policy, Tuning
from fuseboard.contract.protection import CallProtection, PodProtection
from fuseboard.contract.scripts import ADMIT, Script
from fuseboard.contract.words import Mode, Outcome
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from fuseboard.reporting.counters import Counters
from fuseboard.store.store import ConnectionLostError, OnReply, Word
from tests.agents.servers import POLICY, configured

NAME = POLICY.dependencies[0].name
#: Enough turns of the loop for a coroutine that only waits for what has happened.
TURNS = 12
_VERDICTS = {"closed": ADMITS, "open": OPEN, "half_open": PROBES, "forced_open": FORCED_OPEN}


class VirtualTime:
    """Monotonic seconds for every module of the agent, and for the loop."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, module in tuple(sys.modules.items()):
                if name.startswith("fuseboard.") and hasattr(module, "monotonic"):
                    stack.enter_context(patch.object(module, "monotonic", self))
            yield


@dataclass
class Asked:
    """A script that Redis has not answered."""

    script: Script
    on_reply: OnReply


class HeldStore:
    """A ``Store`` whose answers the test gives, in the order of the questions."""

    together = True
    trouble = ""

    def __init__(self) -> None:
        self.connected = True
        self.closed = False
        self.asked: deque[Asked] = deque()

    def serves(self, key: bytes) -> bool:
        return self.connected

    def on_lost(self, callback: Callable[[Exception | None], None]) -> None:
        """The test says when the connection is lost."""

    def on_news(self, callback: Callable[[], None]) -> None:
        """There is no news."""

    async def connect(self, timeout: float = 1.0) -> None:
        """It is connected."""

    async def drop(self) -> None:
        """The test says when the connection is lost."""

    async def close(self) -> None:
        self.closed = True

    def run(
        self, script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], on_reply: OnReply
    ) -> None:
        self.asked.append(Asked(script, on_reply))

    async def call(self, *command: Word, timeout: float = 1.0) -> object:
        raise ConnectionLostError("not part of this model")

    def isolate(self, deadline_s: float) -> bool:
        return False


class VirtualSelector(selectors.DefaultSelector):
    """Time is virtual, and a thread or a socket is never waited for. So a loop that has nothing to do would
    wait forever: it raises instead, with what its tasks wait for.
    """

    def __init__(self, missing: Callable[[], str]) -> None:
        super().__init__()
        self._missing = missing

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            raise AssertionError(f"the loop waits for something that never comes: {self._missing()}")
        return super().select(0)


class Call:
    """A call from its admission on. ``permit`` and ``refused`` say how that ended, if it has."""

    def __init__(self, task: asyncio.Task[Permit]) -> None:
        self.task = task

    @property
    def waits(self) -> bool:
        return not self.task.done()

    @property
    def permit(self) -> Permit | None:
        if self.waits or self.task.cancelled() or self.task.exception() is not None:
            return None
        return self.task.result()

    @property
    def refused(self) -> Refused | None:
        error = None if self.waits or self.task.cancelled() else self.task.exception()
        return error if isinstance(error, Refused) else None


class Pod:
    """Decides calls to one dependency without vendor limits. Every method returns when the loop is idle."""

    def __init__(
        self,
        breaker: BreakerPolicy,
        time: VirtualTime,
        protection: CallProtection | None = None,
        pod_protection: PodProtection | None = None,
    ) -> None:
        payments = msgspec.structs.replace(
            POLICY.dependencies[0], breaker=breaker, vendor_limits=(), protection=protection
        )
        # Not the default deadline: tests/conftest.py makes that longer, and time here is virtual.
        tuning = Tuning(store_deadline_us=4_000, store_timeouts=10_000, store_failures=1000)
        policy: Policy = msgspec.structs.replace(
            POLICY, dependencies=(payments,), tuning=tuning, protection=pod_protection
        )
        self.time = time
        self.loop = asyncio.SelectorEventLoop(VirtualSelector(self.missing))
        self.loop.time = time  # type: ignore[method-assign]
        self.store = HeldStore()
        self.counters = Counters()
        self.configuration = configured(policy)
        self.deadline_s = policy.tuning.store_deadline_us / 1_000_000
        self.admission: Admission = compose_admission(
            configuration=self.configuration,
            counters=self.counters,
            store=self.store,
            server="web-1",
            environment="production",
            on_change=lambda: None,
        )
        self.in_mode(Mode.SHARED)

    @property
    def breaker(self) -> FleetBreaker:
        return self.admission.calls.breakers[NAME]

    def missing(self) -> str:
        """What Redis has not answered, and the tasks that have not ended."""
        tasks = sorted(task.get_name() for task in asyncio.all_tasks(self.loop))
        return f"answers to {[asked.script.name for asked in self.store.asked]}, for the tasks {tasks}"

    def run(self, what: Callable[[], object]) -> None:
        """Do ``what`` in the loop, and let everything happen that follows from it now."""

        async def turns() -> None:
            what()
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def in_mode(self, mode: Mode) -> None:
        """Redis is lost, or is back."""

        def change() -> None:
            self.store.connected = mode is not Mode.LOCAL
            lost = tuple(self.store.asked) if mode is Mode.LOCAL else ()
            for asked in lost:
                self.store.asked.popleft()
                asked.on_reply(ConnectionLostError("lost"))
            assert not lost or not self.store.asked, f"asked of a Redis that is lost: {self.missing()}"
            if self.admission.health.mode is not mode:
                self.admission.health._change(mode, "the model")

        self.run(change)

    def call(self, wait_s: float = 0.0, dependency: str = NAME, **options: Any) -> Call:
        calls: list[Call] = []

        def begin() -> None:
            question: Coroutine[Any, Any, Permit] = self.admission.admit_call(
                dependency, wait_s=wait_s, **options
            )
            calls.append(Call(self.loop.create_task(question)))

        self.run(begin)
        return calls[0]

    def pass_time(self, seconds: float) -> None:
        self.time.now += seconds
        self.run(lambda: None)

    def answer(
        self, state: str, generation: int, free: int = 1, *, cooling: bool = False, late_s: float = 0.0
    ) -> None:
        """Redis answers the oldest question, with its breaker in this state.

        ``cooling``: the vendor asked not to be called. ``late_s``: it decided that long ago.
        """
        asked = self.store.asked.popleft()
        stopped = state in ("open", "forced_open")
        now_us, remaining_us = int((self.time.now - late_s) * 1_000_000), 60_000_000 if stopped else 0
        if asked.script is not ADMIT:
            number = ("closed", "open", "half_open").index(state)
            self.run(lambda: asked.on_reply([0, number, generation, remaining_us, now_us, 0, 0, 0]))
            return
        if cooling:
            remaining_us = 1_000_000
        verdict = COOLING_DOWN if cooling else _VERDICTS[state]
        figures: list[int] = []
        if remaining_us:
            figures = [0, -1, remaining_us]
        elif state == "half_open":
            figures = [free, -1, 1_000]
        reply = msgspec.msgpack.encode([verdict, generation, remaining_us, now_us, "", figures])
        self.run(lambda: asked.on_reply(reply))

    def fail(self) -> None:
        """The oldest question gets no answer: the connection broke."""
        asked = self.store.asked.popleft()
        self.run(lambda: asked.on_reply(ConnectionLostError("lost")))

    def report(self, call: Call, outcome: Outcome) -> None:
        permit = call.permit
        assert permit is not None
        self.run(lambda: self.admission.report(permit, outcome))

    def close(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.run(lambda: None)
        self.loop.close()
