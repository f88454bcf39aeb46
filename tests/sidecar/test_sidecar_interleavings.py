"""Whatever order things happen in, slots, charges and outcomes are what a model says."""

import asyncio
import json
from collections import Counter
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseboard import Agent
from fuseboard.contract.words import Outcome, Reason
from fuseboard.decision import Decision, Permit
from fuseboard.reporting.sidecar_figures import SidecarFigures
from fuseboard.serving.exchange import JSON, Answer, Request
from fuseboard.sidecar import permits
from fuseboard.sidecar.routes import Sidecar
from fuseboard.testing import FakeAgent
from tests.begun import Begun
from tests.waiting import PATIENCE_S

SLOTS = 3
#: Statuses of vendors, and what they count as.
JUDGED = {200: Outcome.OK, 429: Outcome.NEUTRAL, 500: Outcome.FAILURE}


class Pod(FakeAgent):
    """Three slots, and charges that a call which was not made gets back."""

    def __init__(self) -> None:
        super().__init__()
        self.spent = 0
        self.sidecar_figures = SidecarFigures()
        self._costs: dict[int, int] = {}
        #: Admissions wait for it.
        self.go = asyncio.Event()
        self.go.set()

    async def admit_call(self, dependency: str, **options: Any) -> Permit:
        await self.go.wait()
        if self.held(dependency) >= SLOTS:
            self.full(dependency, times=1)
        permit = await super().admit_call(dependency, **options)
        self._costs[id(permit)] = options["cost"]
        self.spent += options["cost"]
        return permit

    def give_back(self, taken: Decision | Permit) -> None:
        if isinstance(taken, Permit) and not taken.reported:
            self.spent -= self._costs[id(taken)]
        super().give_back(taken)


class Model:
    """What must be true of a sidecar, told in plain sets and sums."""

    def __init__(self) -> None:
        #: The cost of each open permit, and when it expires.
        self.open: dict[str, tuple[int, float]] = {}
        self.issued: list[str] = []
        self.spent = self.unknown = self.expired = 0
        self.outcomes: Counter[Outcome] = Counter()

    def end(self, name: str, outcome: Outcome, *, refund: bool = False) -> bool:
        if name not in self.open:
            return False
        cost, _ = self.open.pop(name)
        self.spent -= cost if refund else 0
        self.outcomes[outcome] += 1
        return True


class Play:
    def __init__(self) -> None:
        self.pod, self.model, self.now = Pod(), Model(), 1000.0
        self.sidecar = Sidecar(cast(Agent, self.pod))

    async def ask(self, path: str, content: Any) -> tuple[Any, Answer]:
        answer = self.sidecar.handle(request(path, content))
        answer = answer if isinstance(answer, Answer) else await answer
        assert answer.status == 200, answer.body
        return json.loads(answer.body), answer

    async def admit(self, cost: int, reports: list[dict[str, Any]] = []) -> Answer:  # noqa: B006 - read only
        found, answer = await self.ask(
            "/v1/calls", {"dependency": "payments", "cost": cost, "reports": reports}
        )
        assert found["allowed"] is (len(self.model.open) < SLOTS)
        if found["allowed"]:
            self.model.open[found["permit"]] = (cost, self.now + found["expires_ms"] / 1000)
            self.model.issued.append(found["permit"])
            self.model.spent += cost
        else:
            assert found["reason"] == Reason.BULKHEAD_FULL
        return answer

    async def carry(self, number: int, status: int) -> None:
        """A call that brings the report of an earlier one, whose slot it may get."""
        name = self.name(number)
        self.model.unknown += not self.model.end(name, JUDGED[status])
        await self.admit(1, [{"permit": name, "status": status}])

    async def unsent(self, cost: int) -> None:
        """The application leaves just before the answer is written."""
        answer = await self.admit(cost)
        if answer.unsent is not None:
            answer.unsent()
            self.model.end(self.model.issued[-1], Outcome.NEUTRAL, refund=True)

    async def leave(self) -> None:
        """The application leaves while its admission waits."""
        self.pod.go.clear()
        handled = self.sidecar.handle(request("/v1/calls", {"dependency": "payments"}))
        assert not isinstance(handled, Answer)
        begun = Begun(handled)
        assert begun.waits
        assert self.sidecar.waiting == 1
        begun.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begun.result()
        self.pod.go.set()

    async def report(self, number: int, status: int) -> None:
        name = self.name(number)
        counts = self.model.end(name, JUDGED[status])
        self.model.unknown += not counts
        found, _ = await self.ask("/v1/reports", [{"permit": name, "status": status}])
        assert (found["accepted"], found["unknown"]) == (int(counts), [] if counts else [name])

    async def report_twice(self, number: int) -> None:
        name = self.name(number)
        counts = self.model.end(name, Outcome.FAILURE)
        self.model.unknown += 2 - counts
        twice = [{"permit": name, "status": 500}, {"permit": name, "status": 200}]
        found, _ = await self.ask("/v1/reports", twice)
        assert (found["accepted"], len(found["unknown"])) == (int(counts), 2 - counts)

    async def give_back(self, number: int) -> None:
        name = self.name(number)
        counts = self.model.end(name, Outcome.NEUTRAL, refund=True)
        found, _ = await self.ask("/v1/give-back", {"permit": name})
        assert found["accepted"] == int(counts)

    async def wait(self, seconds: int) -> None:
        self.now += seconds
        for name, (_, until) in tuple(self.model.open.items()):
            if until <= self.now:
                self.model.expired += self.model.end(name, Outcome.NEUTRAL)
        self.sidecar.sweep()

    async def drain(self) -> None:
        for name in tuple(self.model.open):
            self.model.end(name, Outcome.NEUTRAL)
        await self.sidecar.stop()

    def name(self, number: int) -> str:
        """A permit that was issued, open or not, or one that never was."""
        return self.model.issued[number % len(self.model.issued)] if self.model.issued else "p0"

    def check(self) -> None:
        sidecar, model = self.sidecar, self.model
        assert self.pod.held("payments") == len(sidecar.permits) == len(model.open)
        assert self.pod.spent == model.spent
        assert Counter(outcome for _, outcome in self.pod.outcomes) == model.outcomes
        assert (sidecar.permits.issued, sidecar.permits.expired) == (len(model.issued), model.expired)
        assert (sidecar.reports.unknown, sidecar.reports.invalid, sidecar.waiting) == (model.unknown, 0, 0)


def request(path: str, content: Any) -> Request:
    body = msgspec.json.encode(content)
    return Request(method="POST", path=path, headers={"content-type": JSON}, body=body)


NUMBER, COST, STATUS = st.integers(0, 8), st.integers(1, 5), st.sampled_from(sorted(JUDGED))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), COST),
        st.tuples(st.just("admit"), COST),
        st.tuples(st.just("carry"), NUMBER, STATUS),
        st.tuples(st.just("unsent"), COST),
        st.tuples(st.just("leave")),
        st.tuples(st.just("report"), NUMBER, STATUS),
        st.tuples(st.just("report_twice"), NUMBER),
        st.tuples(st.just("give_back"), NUMBER),
        st.tuples(st.just("wait"), st.integers(1, 70)),
        st.tuples(st.just("drain")),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=200)
@given(STEPS)
def test_slots_charges_and_outcomes_are_those_of_the_model(steps: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        play = Play()
        permits.monotonic, real = lambda: play.now, permits.monotonic  # type: ignore[assignment]
        try:
            for name, *arguments in steps:
                async with asyncio.timeout(PATIENCE_S):
                    await getattr(play, name)(*arguments)
                play.check()
            await play.drain()
            play.check()
            assert play.pod.held("payments") == 0
        finally:
            permits.monotonic = real

    asyncio.run(run())
