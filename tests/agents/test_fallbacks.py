"""What answers instead of a dependency, and calls that matter differently."""

import asyncio
import inspect
import logging
from pathlib import Path
from typing import Any

import pytest

from fuseboard import Agent, Alternative, Answer, Cached, Default, Misconfigured, Reason, Refused, blocking
from fuseboard.contract.load import CallLoad
from fuseboard.decision import Decision
from tests.agents.alone import settings_with
from tests.agents.retry_world import HttpError
from tests.agents.servers import POLICY

DOWN = ConnectionRefusedError("down")


def raises(error: BaseException) -> Any:
    async def call() -> Any:
        raise error

    return call


def returns(value: Any) -> Any:
    async def call() -> Any:
        return value

    return call


def refused(reason: Reason) -> Refused:
    return Refused(Decision(allowed=False, reason=reason, dependency="llm"))


def wrapped(cause: Exception) -> Exception:
    """As a client library raises it that has one error for all."""
    error = RuntimeError("no answer")
    error.__cause__ = cause
    return error


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    """Not started: chains need no loop of the agent."""
    return Agent(settings=settings_with(tmp_path, POLICY))


async def test_a_failing_primary_is_answered_by_the_fallback_and_flagged(agent: Agent, caplog):
    caplog.set_level(logging.WARNING)
    chain = agent.fallback("llm", [Alternative("mini", call=returns("short")), Default("sorry")])
    assert await chain.run(returns("long")) == Answer(value="long", source="llm")
    assert await chain.run(raises(DOWN)) == Answer(
        value="short", source="mini", is_fallback=True, reason="ConnectionRefusedError"
    )
    assert [record.getMessage() for record in caplog.records] == [
        "fallback.used dependency=llm source=mini reason=ConnectionRefusedError"
    ]
    assert agent.retries.totals()["llm"].fallbacks == 1


@pytest.mark.parametrize(
    ("error", "falls_back"),
    [
        (refused(Reason.BREAKER_OPEN), True),
        (refused(Reason.BULKHEAD_FULL), True),
        (refused(Reason.QUOTA), False),
        (refused(Reason.SUSPENDED), False),
        (HttpError(503), True),
        (HttpError(400), False),
        # None of them is a mistake in the request. Another vendor has another account.
        (HttpError(401), True),
        (HttpError(402), True),
        (HttpError(403), True),
        *((HttpError(status), False) for status in (404, 405, 409, 410, 422)),
        # A client library wraps what its transport raises.
        (wrapped(refused(Reason.BREAKER_OPEN)), True),
        (wrapped(refused(Reason.QUOTA)), False),
        (ValueError("an answer that does not parse"), True),
    ],
)
async def test_another_source_is_asked_where_it_may_have_an_answer(agent: Agent, error, falls_back):
    chain = agent.fallback("llm", [Default("sorry")])
    if falls_back:
        answer = await chain.run(raises(error))
        assert (answer.value, answer.is_fallback, answer.is_degraded) == ("sorry", True, True)
    else:
        with pytest.raises(type(error)):
            await chain.run(raises(error))


async def test_a_cancelled_call_is_not_answered(agent: Agent):
    chain = agent.fallback("llm", [Default("sorry")])
    with pytest.raises(asyncio.CancelledError):
        await chain.run(raises(asyncio.CancelledError()))


async def test_a_cached_answer_has_an_age_and_is_never_too_old(agent: Agent):
    stored: list[Any] = [("yesterday", 599.0)]
    chain = agent.fallback("llm", [Cached(lambda: stored[0], max_age_s=600), Default("sorry")])
    answer = await chain.run(raises(DOWN))
    assert (answer.value, answer.source, answer.age_s) == ("yesterday", "cache", 599.0)
    assert (answer.is_cached, answer.is_fallback, answer.is_degraded) == (True, True, True)
    for stored[0] in (("old", 601.0), None):
        assert (await chain.run(raises(DOWN))).source == "default"
    totals = agent.retries.totals()["llm"]
    assert (totals.fallbacks, totals.cached) == (3, 1)


async def test_a_request_that_is_too_large_goes_to_whoever_takes_more(agent: Agent):
    steps = [
        Alternative("small", call=raises(AssertionError("asked"))),
        Alternative("large", call=returns("read"), takes_more=True),
    ]
    assert (await agent.fallback("llm", steps).run(raises(HttpError(413)))).source == "large"
    with pytest.raises(HttpError):
        await agent.fallback("llm", steps[:1]).run(raises(HttpError(413)))


async def test_if_all_fail_the_first_error_is_raised_and_counted(agent: Agent):
    chain = agent.fallback(
        "llm", [Alternative("mini", call=raises(KeyError("also"))), Cached(lambda: None, max_age_s=1)]
    )
    with pytest.raises(ConnectionRefusedError) as caught:
        await chain.run(raises(ConnectionRefusedError("down")))
    assert caught.value.__notes__ == [
        "fuseboard: fallback 'mini' failed: KeyError: 'also'",
        "fuseboard: fallback 'cache' has no answer that is young enough",
    ]
    assert agent.retries.totals()["llm"].fallback_failures == 1
    assert agent.retries.reported(()) == (CallLoad(dependency="llm", fallback_failures=1),)


def test_a_chain_is_short_and_does_not_lead_to_itself(agent: Agent):
    for steps in ([], [Default(None, name=f"d{n}") for n in range(6)]):
        with pytest.raises(Misconfigured, match="1 to 5"):
            agent.fallback("llm", steps)
    with pytest.raises(Misconfigured, match="itself"):
        agent.fallback("llm", [Alternative("llm", call=returns(1))])
    with pytest.raises(Misconfigured, match="twice"):
        agent.fallback("llm", [Default(1), Default(2)])
    with pytest.raises(Misconfigured, match="max_age_s"):
        agent.fallback("llm", [Cached(lambda: None, max_age_s=0)])


async def test_critical_calls_must_succeed_and_others_need_not(agent: Agent):
    answers = await agent.gather_tiers(
        critical=[returns(1)(), returns(2)()],
        standard=[
            returns(3)(),
            raises(refused(Reason.BULKHEAD_FULL))(),
            raises(wrapped(refused(Reason.SHED)))(),
        ],
        optional=[raises(DOWN)(), returns(4)()],
    )
    assert (answers.critical, answers.standard, answers.optional) == ((1, 2), (3, None, None), (None, 4))


async def test_if_a_critical_call_fails_the_others_end_first(agent: Agent):
    ended = []

    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def late() -> None:
        await asyncio.sleep(0)
        raise DOWN

    with pytest.raises(ConnectionRefusedError):
        await agent.gather_tiers(critical=[late(), long()], standard=[long()], optional=[long()])
    assert ended == [True] * 3
    with pytest.raises(ConnectionRefusedError):
        await agent.gather_tiers(standard=[raises(DOWN)()])
    task = asyncio.create_task(agent.gather_tiers(optional=[long()]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(ended) == 4


async def test_the_reason_is_that_of_the_refusal_inside(agent: Agent):
    chain = agent.fallback("llm", [Default("sorry")])
    assert (await chain.run(raises(wrapped(refused(Reason.BREAKER_OPEN))))).reason == "breaker_open"


@pytest.mark.filterwarnings("error")
async def test_a_call_that_did_not_begin_is_closed(agent: Agent):
    """Python warned that it was never awaited."""
    calls = [returns(1)() for _ in range(3)]
    task = asyncio.create_task(
        agent.gather_tiers(critical=calls[:1], standard=calls[1:2], optional=calls[2:])
    )
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [inspect.getcoroutinestate(call) for call in calls] == [inspect.CORO_CLOSED] * 3


def gives(value: Any) -> Any:
    return lambda: value


def fails(error: BaseException) -> Any:
    def call() -> Any:
        raise error

    return call


def test_a_blocking_agent_has_the_same_chain(tmp_path: Path, caplog):
    caplog.set_level(logging.WARNING, logger="fuseboard.fallbacks")
    with blocking.Agent(settings=settings_with(tmp_path, POLICY)) as agent:
        steps = [
            Alternative("mini", call=fails(KeyError("also"))),
            Cached(gives(("old", 9.0)), max_age_s=600),
        ]
        chain = agent.fallback("llm", steps)
        assert chain.run(gives("long")) == Answer(value="long", source="llm")
        answer = chain.run(fails(DOWN))
        assert (answer.value, answer.is_cached, answer.age_s) == ("old", True, 9.0)
        with pytest.raises(Refused):
            chain.run(fails(refused(Reason.QUOTA)))
        with pytest.raises(ConnectionRefusedError) as caught:
            agent.fallback("llm", steps[:1]).run(fails(ConnectionRefusedError("down")))
        assert caught.value.__notes__ == ["fuseboard: fallback 'mini' failed: KeyError: 'also'"]
        totals = agent.retries.totals()["llm"]
        assert (totals.fallbacks, totals.cached, totals.fallback_failures) == (1, 1, 1)
        ours = [record.getMessage() for record in caplog.records if record.name == "fuseboard.fallbacks"]
        assert ours == [
            "fallback.used dependency=llm source=cache reason=ConnectionRefusedError",
            "fallback.failed dependency=llm reason=ConnectionRefusedError",
        ]
        with pytest.raises(Misconfigured, match="afallback"):
            agent.fallback("llm", [Alternative("mini", call=returns("short"))])
        with pytest.raises(Misconfigured, match="afallback"):
            chain.run(returns("long"))


def test_a_blocking_agent_has_a_chain_for_coroutines(tmp_path: Path):
    with blocking.Agent(settings=settings_with(tmp_path, POLICY)) as agent:
        chain = agent.afallback("llm", [Alternative("mini", call=returns("short"))])
        assert asyncio.run(chain.run(raises(DOWN))).value == "short"
        assert agent.retries.totals()["llm"].fallbacks == 1
