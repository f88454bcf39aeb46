"""Wrong versions of what decides about retries: the rules of the tests find each one."""

import inspect
import logging
from collections.abc import Callable, Iterator
from random import Random
from types import ModuleType
from typing import Any

import pytest

from fuseboard.agent_api import retrying
from fuseboard.calling import retried_call, retry_budget
from fuseboard.calling.classification import Verdict
from fuseboard.calling.retries import Capacity
from fuseboard.contract.protection import Retry
from tests.agents.retry_world import ALWAYS, DOWN, World, now, play


def changed(module: ModuleType, old: str, new: str) -> ModuleType:
    """The module with one piece of its source replaced."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, (old, source.count(old))
    made = ModuleType(module.__name__)
    exec(compile(source.replace(old, new), str(module.__file__), "exec"), made.__dict__)  # noqa: S102 - our own
    return made


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# The rules, each with what it needs of the module


def budget_is_kept(module: Any) -> None:
    """Of a hundred calls in 10 s that fail one by one, at most ten and the floor are retried."""
    budget, made = module.RetryBudget(0.0), 0
    retry = Retry(floor_milli=0)
    for step in range(100):
        budget.first_call(step / 10)
        made += budget.withdraw(step / 10, retry, 0.0, troubled=False) is not None
    assert 9 <= made <= 10


def retries_are_spaced(module: Any) -> None:
    budget = module.RetryBudget(0.0)
    for _ in range(100):
        budget.first_call(0.5)
    made = [budget.withdraw(0.5 + n / 100, Retry(), 0.0, troubled=True) for n in range(90)]
    assert sum(one is not None for one in made) == 1


def old_calls_end(module: Any) -> None:
    budget = module.RetryBudget(0.0)
    for _ in range(100):
        budget.first_call(0.5)
    assert budget.withdraw(11.5, Retry(), 0.0, troubled=False) is None


def floor_is_one(module: Any) -> None:
    budget = module.RetryBudget(0.0)
    made = [budget.withdraw(1000.0, Retry(budget_percent=0), 1.0, troubled=False) for _ in range(5)]
    assert sum(one is not None for one in made) == 1


def window_is_bounded_by_time(module: Any) -> None:
    window = module.ErrorWindow()
    for _ in range(50):
        window.add(0.0, failed=True)
    assert window.rate(100.0) is None


def window_is_bounded_by_calls(module: Any) -> None:
    window = module.ErrorWindow()
    for number in range(200):
        window.add(1.0, failed=number < 100)
    assert window.rate(1.0) == 0.0


def vendor_is_obeyed(module: Any) -> None:
    verdict = Verdict(retryable=True, cooldown_ms=10_000)
    assert module.backoff_s(Retry(), verdict, 1, 0.0, Random(1)) >= 10
    verdict = Verdict(retryable=True, cooldown_ms=1)
    assert module.backoff_s(ALWAYS, verdict, 1, 0.0, Random(1)) == 0.5


def cap_is_kept(module: Any) -> None:
    assert module.backoff_s(ALWAYS, Verdict(retryable=True), 5000, 0.0, Random(1)) == 5.0


def token_is_given_back(module: Any) -> None:
    async def main() -> None:
        world = World(clock=now, retry=ALWAYS, warm=10)
        call = module.RetriedCall(world.retries, "api")
        budget = world.retries.part("api").budget
        call.begin()
        before = budget.left(now(), ALWAYS)
        assert call.failed(DOWN)
        call.dropped()
        assert budget.left(now(), ALWAYS) == pytest.approx(before)
        assert call.failed(DOWN)
        world.capacity = Capacity(closed=False)
        assert not call.resumes()
        assert budget.left(now(), ALWAYS) == pytest.approx(before)

    play(main())


def deadline_is_of_all_attempts(module: Any) -> None:
    async def main() -> None:
        world = World(clock=now, retry=ALWAYS)
        call = module.RetriedCall(world.retries, "api", until=0.4)
        call.begin()
        assert not call.failed(ConnectionRefusedError())

    play(main())


def attempts_are_bounded(module: Any) -> None:
    async def main() -> None:
        world = World(clock=now, retry=Retry(attempts=1, idempotent=True))
        call = module.RetriedCall(world.retries, "api")
        call.begin()
        assert not call.failed(ConnectionRefusedError())

    play(main())


def first_calls_alone_deposit(module: Any) -> None:
    async def main() -> None:
        world = World(clock=now, retry=ALWAYS, warm=0)
        call = module.RetriedCall(world.retries, "api")
        for _ in range(5):
            call.begin()
            call.admitted()
        assert sum(world.retries.part("api").budget._calls) == 1

    play(main())


def sent_is_not_repeated(module: Any) -> None:
    async def main() -> None:
        world = World(clock=now, retry=Retry())
        call = module.RetriedCall(world.retries, "api")
        call.begin()
        assert not call.failed(TimeoutError())

    play(main())


def a_block_may_be_several_requests(module: Any) -> None:
    async def main() -> None:
        world = World(clock=now, retry=Retry())
        for one_request in (False, True):
            call = module.RetriedCall(world.retries, "api", one_request=one_request)
            call.begin()
            assert call.failed(ConnectionRefusedError()) is one_request

    play(main())


def nothing_begins_while_open(module: Any) -> None:
    async def main() -> None:
        world = World(DOWN, clock=now, retry=ALWAYS)

        async def find() -> World:
            return world

        async def use() -> None:
            async for attempt in module.Retrying(module.Policy(dependency="api", options={}), find):
                async with attempt:
                    await world.send()
                world.capacity = Capacity(closed=False)

        with pytest.raises(ConnectionRefusedError):
            await use()
        assert len(world.sent) == 1

    play(main())


MUTANTS: list[tuple[str, ModuleType, str, str, Callable[[Any], None]]] = [
    ("retries are not counted", retry_budget, "self._retries[self._slot % SLOTS] += 1", "pass",
     budget_is_kept),
    ("calls count ten times", retry_budget, "calls, part = sum(self._calls), retry.budget_percent / 100",
     "calls, part = sum(self._calls), retry.budget_percent / 10", budget_is_kept),
    ("retries are not spaced", retry_budget, "if troubled and before_s is not None", "if False",
     retries_are_spaced),
    ("calls are never too old", retry_budget,
     "self._calls[passed % SLOTS] = self._retries[passed % SLOTS] = 0", "pass", old_calls_end),
    ("the floor saves up", retry_budget, "self._floor = min(1.0, self._floor + rate *",
     "self._floor = min(9.0, self._floor + rate *", floor_is_one),
    ("the window has no end", retry_budget, "self._ended[0][0] <= now - WINDOW_S", "False",
     window_is_bounded_by_time),
    ("the window has no length", retry_budget, "if len(self._ended) > WINDOW_CALLS:", "if False:",
     window_is_bounded_by_calls),
    ("Retry-After is a maximum", retried_call, "return max(drawn,", "return min(drawn,", vendor_is_obeyed),
    ("the exponent has no bound", retried_call, "2 ** min(attempt - 1, MAX_EXPONENT)", "2.0 ** (attempt - 1)",
     cap_is_kept),
    ("the cap is lost", retried_call, "most_s: float = min(cap_s, ", "most_s: float = max(cap_s, ",
     cap_is_kept),
    ("a dropped retry is kept", retried_call, "self._retries.give_back(self._part, self._taken)", "pass",
     token_is_given_back),
    ("the deadline is ignored", retried_call, "now + delay_s + part.usual_s > self._until", "False",
     deadline_is_of_all_attempts),
    ("one attempt too many", retried_call, "if self.num >= self.most:", "if self.num > self.most:",
     attempts_are_bounded),
    ("retries deposit too", retried_call, "if self.num == 1:", "if True:", first_calls_alone_deposit),
    ("what was sent is repeated", retried_call, "if not self._repeatable and (", "if False and (",
     sent_is_not_repeated),
    ("a block is one request", retried_call, "(verdict.sent or not self._one_request)", "verdict.sent",
     a_block_may_be_several_requests),
    ("a retry begins while open", retrying, "if not call.resumes() and call.cause is not None:", "if False:",
     nothing_begins_while_open),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(("name", "module", "old", "new", "rule"), MUTANTS, ids=[one[0] for one in MUTANTS])
def test_a_mutant_dies(name: str, module: ModuleType, old: str, new: str, rule: Callable[[Any], None]):
    rule(module)
    with pytest.raises((AssertionError, OverflowError, pytest.fail.Exception)):
        rule(changed(module, old, new))
