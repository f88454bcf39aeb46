"""How long refused tasks wait and when they fail, and what Celery does with a refusal."""

import asyncio
import pickle
import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from dramatiq.errors import Retry as Later

from fuseboard import Misconfigured, Outcome, Reason, Refused
from fuseboard.decision import Decision
from fuseboard.integrations import celery as integration
from fuseboard.integrations.celery import HEADER, GuardedTask
from fuseboard.integrations.dramatiq import FuseboardMiddleware as DramatiqMiddleware
from fuseboard.integrations.task_admission import (
    CAP_S,
    MAX_REFUSALS,
    MAX_REFUSED_S,
    SHORT_WAIT_S,
    Refusals,
    call_options,
    chosen,
    pause_s,
    report_end,
)
from fuseboard.testing import FakeAgent


def refusal(retry_after_ms: int) -> Decision:
    return Decision(
        allowed=False, reason=Reason.BREAKER_OPEN, dependency="payments", retry_after_ms=retry_after_ms
    )


@pytest.mark.parametrize(
    ("retry_after_ms", "least", "most"),
    [(10_000, 10.0, 12.0), (0, 1.0, 1.2), (1, 0.05, 0.06), (10**7, CAP_S, CAP_S)],
)
def test_a_refused_task_waits_until_the_refusal_ends_spread_and_bounded(
    retry_after_ms: int, least: float, most: float
):
    pauses = [pause_s(refusal(retry_after_ms)) for _ in range(50)]
    assert least <= min(pauses) <= max(pauses) <= most
    assert len(set(pauses)) > 1 or least == most


def test_a_task_fails_after_20_refusals_or_an_hour():
    refusals = Refusals()
    for _ in range(MAX_REFUSALS):
        refusals = refusals.and_one()
        assert not refusals.too_many
    assert refusals.and_one().too_many
    assert Refusals(1, time.time() - MAX_REFUSED_S - 1).too_many
    assert refusals.since_s <= time.time()


def test_a_tenant_or_cost_is_a_value_or_a_function_of_the_arguments():
    assert chosen("acme", (1,), {}) == "acme"
    assert chosen(lambda order, size=1: order * size, (2,), {"size": 3}) == 6


def test_a_stored_refusal_has_no_secret():
    class Signer:
        def sign(self, decision: Decision) -> str:
            return "token"

        def explain_url(self, token: str) -> str:
            return ""

        def __reduce__(self) -> Any:
            raise AssertionError("the key would be stored")

    refused = Refused(Decision(allowed=False, reason=Reason.QUOTA, rule="requests", signer=Signer()))
    again = pickle.loads(pickle.dumps(refused))  # noqa: S301 - our own
    assert (str(again), again.decision.rule) == (str(refused), "requests")


app = Celery("tests", broker="memory://")


@app.task(bind=True, base=GuardedTask, dependency="payments")
def charge(self: Any, error: Exception | None = None) -> str:
    if error is not None:
        raise error
    return "charged"


class Threads:
    """The fake for a worker, which has no event loop."""

    def __init__(self, fake: FakeAgent) -> None:
        self._fake, self.report = fake, fake.report

    def admit_call(self, dependency: str, **options: Any) -> Any:
        return asyncio.run(self._fake.admit_call(dependency, **options))


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> FakeAgent:
    fake = FakeAgent()
    monkeypatch.setattr(integration, "_given", [Threads(fake)])
    return fake


def run(error: Exception | None = None, **request: Any) -> Any:
    """Run the task as a worker does."""
    facts = {"id": "1", "args": [], "kwargs": {}, "delivery_info": {"priority": 2}, "called_directly": False}
    charge.request_stack.push(Context(facts | request))
    try:
        return charge(error)
    finally:
        charge.request_stack.pop()


class TestCelery:
    def test_a_refused_task_is_published_again_without_spending_a_retry(
        self, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
    ):
        published: list[Any] = []
        monkeypatch.setattr(
            "celery.canvas.Signature.apply_async", lambda self: published.append(self.options)
        )
        agent.open("payments", retry_after_s=30)
        with pytest.raises(Retry):
            run(retries=1)
        (options,) = published
        assert (options["retries"], options["priority"], options["task_id"]) == (1, 2, "1")
        assert 30 <= options["countdown"] <= 36
        assert options["headers"][HEADER][0] == 1

    def test_a_broker_that_cannot_take_it_keeps_the_message_or_the_task_fails(
        self, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ):
        def away(_: Any) -> None:
            raise ConnectionError("broker away")

        monkeypatch.setattr("celery.canvas.Signature.apply_async", away)
        agent.open("payments")
        # It was acknowledged before it ran: a Reject would end it without a trace.
        with pytest.raises(Refused):
            run()
        assert "celery.not_published" in caplog.text
        monkeypatch.setattr(charge, "acks_late", True)
        with pytest.raises(Reject) as rejected:
            run()
        assert rejected.value.requeue

    def test_a_pause_is_half_the_time_after_which_redis_delivers_again(
        self, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setitem(app.conf, "broker_transport_options", {"visibility_timeout": 20})
        assert charge._pause_s(refusal(60_000)) == 10

    def test_the_last_refusal_fails_the_task(self, agent: FakeAgent):
        agent.open("payments")
        with pytest.raises(Refused):
            run(headers={HEADER: [MAX_REFUSALS, time.time()]})

    def test_the_end_is_reported_and_a_direct_call_is_not_guarded(self, agent: FakeAgent):
        assert run() == "charged"
        for error in (ConnectionError(), Retry(exc=ConnectionError()), Retry(), Reject(), Ignore()):
            with pytest.raises(type(error)):
                run(error)
            with pytest.raises(ExceptionGroup):
                run(ExceptionGroup("tasks", [error]))
        failed, neutral = Outcome.FAILURE, Outcome.NEUTRAL
        found = [outcome for _, outcome in agent.outcomes]
        assert found == [Outcome.OK, *[failed] * 4, *[neutral] * 6]
        agent.open("payments")
        assert charge() == "charged"


class Again(Exception):
    """What a task of any engine raises to run again."""


def again_from(cause: BaseException | None) -> Again:
    error = Again()
    error.__cause__ = cause
    return error


def again_while_handling(context: BaseException) -> Again:
    error = Again()
    error.__context__ = context
    return error


REFUSED = Refused(refusal(1000))
ENDS = [
    (again_from(None), Outcome.NEUTRAL),
    (again_from(ConnectionError()), Outcome.FAILURE),
    (again_while_handling(ConnectionError()), Outcome.FAILURE),
    (again_from(REFUSED), Outcome.NEUTRAL),
    (again_from(ExceptionGroup("tasks", [REFUSED, ConnectionError()])), Outcome.FAILURE),
    (ExceptionGroup("tasks", [again_from(None)]), Outcome.NEUTRAL),
    (ExceptionGroup("tasks", [again_from(ConnectionError())]), Outcome.FAILURE),
    (ExceptionGroup("tasks", [again_from(None), REFUSED]), Outcome.NEUTRAL),
    (ExceptionGroup("tasks", [again_from(None), ConnectionError()]), Outcome.FAILURE),
    (ExceptionGroup("tasks", [ExceptionGroup("more", [REFUSED])]), Outcome.NEUTRAL),
    (ExceptionGroup("tasks", [KeyError("left out")]), Outcome.NEUTRAL),
    (BaseExceptionGroup("tasks", [asyncio.CancelledError(), KeyboardInterrupt()]), Outcome.NEUTRAL),
]


@pytest.mark.parametrize(("error", "expected"), ENDS, ids=lambda value: repr(value)[:60])
async def test_a_task_that_runs_again_says_what_caused_it(
    agent: FakeAgent, error: BaseException, expected: Outcome
):
    permit = await agent.admit_call("payments")
    report_end(agent.report, permit, error, 0.1, again=Again, neutral=(KeyError,))
    assert agent.outcomes == [("payments", expected)]


def test_an_actor_of_dramatiq_that_asks_to_run_again_is_no_failure(agent: FakeAgent):
    for error, expected in ((Later("busy"), Outcome.NEUTRAL), (ConnectionError(), Outcome.FAILURE)):
        worker: Any = Threads(agent)
        middleware = DramatiqMiddleware(worker)
        message: Any = SimpleNamespace(actor_name="charge", args=(), kwargs={}, options={}, failed=False)
        broker: Any = SimpleNamespace(get_actor=lambda _: SimpleNamespace(options={"dependency": "payments"}))
        middleware.before_process_message(broker, message)
        middleware.after_process_message(broker, message, exception=error)
        assert agent.outcomes[-1] == ("payments", expected)


def test_the_options_of_a_task_are_values_or_functions_of_its_arguments():
    options = {"tenant": lambda order: order["tenant"], "tier": "critical", "queue": "other"}
    found = call_options(options, ({"tenant": "acme"},), {})
    assert found == {"tenant": "acme", "tier": "critical", "wait_s": SHORT_WAIT_S}


def test_a_task_with_a_wrong_tier_fails_with_the_rule(agent: FakeAgent, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(charge.__class__, "tier", "gold")
    with pytest.raises(Misconfigured, match="tier must be one of critical, standard, optional"):
        run()
    monkeypatch.setattr(charge.__class__, "tier", "optional")
    assert run() == "charged"
