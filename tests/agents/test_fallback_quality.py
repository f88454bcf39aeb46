"""Answers to similar questions, and answers that are not good enough."""

import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fuseboard
from fuseboard import Agent, Answer, Default, Misconfigured, Similar, Try, blocking
from fuseboard.testing import FakeAgent
from tests.agents.alone import settings_with
from tests.agents.servers import POLICY
from tests.agents.test_fallbacks import DOWN, fails, gives, raises, returns


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    """Not started: chains need no loop of the agent."""
    return Agent(settings=settings_with(tmp_path, POLICY))


class Model:
    """Each try gives the next answer, which is its quality."""

    def __init__(self, *answers: float) -> None:
        self._answers: Iterator[float] = iter(answers)
        self.temperatures: list[float] = []

    def ask(self, attempt: Try) -> float:
        self.temperatures.append(attempt.temperature())
        answer = next(self._answers)
        if answer < 0:
            raise DOWN
        return answer

    async def ask_later(self, attempt: Try) -> float:
        return self.ask(attempt)


def itself(answer: float) -> float:
    return answer


# Similar questions


@pytest.mark.parametrize("later", [False, True])
async def test_the_answer_to_a_similar_question_says_how_similar_it_was(agent: Agent, later: bool):
    find: Any = returns(("near", 0.9)) if later else gives(("near", 0.9))
    answer = await agent.fallback("llm", [Similar(find)]).run(raises(DOWN))
    assert (answer.value, answer.source, answer.similarity) == ("near", "similar", 0.9)
    assert (answer.is_cached, answer.is_fallback, answer.is_degraded) == (True, True, True)
    assert agent.retries.totals()["llm"].cached == 1


@pytest.mark.parametrize("found", [None, ("far", 0.849), ("broken", float("nan"))])
async def test_an_answer_that_is_not_similar_enough_is_none(agent: Agent, found: Any):
    chain = agent.fallback("llm", [Similar(gives(found)), Default("sorry")])
    assert (await chain.run(raises(DOWN))).source == "default"
    with pytest.raises(ConnectionRefusedError) as caught:
        await agent.fallback("llm", [Similar(gives(found))]).run(raises(ConnectionRefusedError("down")))
    assert caught.value.__notes__ == ["fuseboard: fallback 'similar' has no answer that is similar enough"]
    near = agent.fallback("llm", [Similar(gives(("far", 0.6)), at_least=0.5)])
    assert (await near.run(raises(DOWN))).value == "far"


@pytest.mark.parametrize("wrong", [0, 1.1, -1])
def test_a_similarity_is_between_0_and_1(agent: Agent, wrong: float):
    with pytest.raises(Misconfigured, match="at_least of 'similar'"):
        agent.fallback("llm", [Similar(gives(None), at_least=wrong)])


# Quality


async def test_the_best_of_three_tries_is_the_answer_if_none_is_good_enough(caplog):
    caplog.set_level(logging.WARNING, logger="fuseboard.fallbacks")
    model = Model(0.5, 0.6, 0.65)
    chain = FakeAgent().fallback("llm", [], quality=itself)
    assert await chain.run(model.ask_later) == Answer(
        value=0.65, source="llm", is_degraded=True, quality=0.65, tries=3
    )
    assert model.temperatures == [0.7, 0.5, 0.3]
    ours = [record.getMessage() for record in caplog.records if record.name == "fuseboard.fallbacks"]
    assert ours == ["quality.low dependency=llm quality=0.65 at_least=0.70 tries=3"]


@pytest.mark.parametrize(
    ("answers", "best", "tries"),
    [((0.7,), 0.7, 1), ((0.5, 0.9), 0.9, 2), ((0.65, 0.5, 0.6), 0.65, 3), ((0.6, 0.6, 0.6), 0.6, 3)],
)
async def test_the_first_good_answer_or_the_best_is_returned(
    answers: tuple[float, ...], best: float, tries: int
):
    answer = await FakeAgent().fallback("llm", [], quality=itself).run(Model(*answers).ask_later)
    assert (answer.value, answer.quality, answer.tries, answer.is_degraded) == (best, best, tries, best < 0.7)
    assert not answer.is_fallback


@pytest.mark.parametrize("quality", [fails(KeyError()), gives(None), gives("good"), gives(float("nan"))])
async def test_a_judge_that_fails_says_nothing_bad(quality: Any):
    def judge(answer: float) -> Any:
        return quality()

    model = Model(0.1)
    answer = await FakeAgent().fallback("llm", [], quality=judge).run(model.ask_later)
    assert (answer.value, answer.quality, answer.tries, answer.is_degraded) == (0.1, None, 1, False)


async def test_a_judge_may_wait():
    async def judge(answer: float) -> float:
        return answer

    assert (await FakeAgent().fallback("llm", [], quality=judge).run(Model(0.5, 0.8).ask_later)).value == 0.8


async def test_a_further_try_that_fails_costs_no_answer():
    answer = await FakeAgent().fallback("llm", [], quality=itself).run(Model(0.5, -1, 0.9).ask_later)
    assert (answer.value, answer.tries, answer.is_degraded) == (0.5, 2, True)


async def test_a_first_try_that_fails_is_answered_by_the_chain():
    chain = FakeAgent().fallback("llm", [Default("sorry")], quality=itself)
    assert (await chain.run(Model(-1).ask_later)).value == "sorry"


async def test_further_tries_take_retries_from_the_budget(agent: Agent):
    # A pod that makes few calls may retry once.
    answer = await agent.fallback("llm", [], quality=itself).run(Model(0.5, 0.6, 0.65).ask_later)
    assert (answer.value, answer.tries) == (0.6, 2)
    fake = FakeAgent()
    fake.budget(0)
    answer = await fake.fallback("llm", [], quality=itself).run(Model(0.5, 0.6).ask_later)
    assert (answer.value, answer.tries, answer.is_degraded) == (0.5, 1, True)


async def test_no_try_is_made_that_would_be_too_late():
    with fuseboard.deadline.at(0.0):
        answer = await FakeAgent().fallback("llm", [], quality=itself).run(Model(0.5, 0.9).ask_later)
    assert (answer.value, answer.tries) == (0.5, 1)


def test_the_temperature_falls_and_stays_above_its_least():
    tries = [Try(number) for number in range(1, 5)]
    assert [one.temperature() for one in tries] == [0.7, 0.5, 0.3, 0.3]
    assert [one.temperature(1.0, step=0.1, least=0.8) for one in tries] == [1.0, 0.9, 0.8, 0.8]
    assert [one.temperature(0.0) for one in tries] == [0.0] * 4


@pytest.mark.parametrize("wrong", [{"at_least": 0}, {"at_least": 2}, {"tries": 6}, {"tries": True}])
def test_bounds_of_quality_are_checked(agent: Agent, wrong: dict[str, Any]):
    with pytest.raises(Misconfigured):
        agent.fallback("llm", [], quality=itself, **wrong)


def test_threads_have_the_same(tmp_path: Path):
    with blocking.Agent(settings=settings_with(tmp_path, POLICY)) as agent:
        answer = agent.fallback("llm", [], quality=itself).run(Model(0.5, 0.9).ask)
        assert (answer.value, answer.tries) == (0.9, 2)
        assert agent.fallback("llm", [Similar(gives(("near", 1.0)))]).run(fails(DOWN)).value == "near"
        with pytest.raises(Misconfigured, match="quality is async"):
            agent.fallback("llm", [], quality=Model(0.5).ask_later)
        with pytest.raises(Misconfigured, match="'similar' is async"):
            agent.fallback("llm", [Similar(returns(None))])


def test_a_quality_that_is_no_number_is_logged_and_costs_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with blocking.Agent(settings=settings_with(tmp_path, POLICY)) as agent:
        answer = agent.fallback("llm", [], quality=lambda _: "good").run(Model(0.5).ask)  # type: ignore[arg-type, return-value]
    assert (answer.value, answer.quality) == (0.5, None)
    assert "quality.unknown dependency=llm error=TypeError" in caplog.text


def test_an_answer_can_be_stored_without_its_calls(agent: Agent):
    permit = agent.permit_unasked("llm")
    kept = Answer(value="long", source="llm", permits=(permit,))
    assert pickle.loads(pickle.dumps(kept)) == Answer(value="long", source="llm")  # noqa: S301
