"""An exception group is judged by its members: a ``TaskGroup`` raises one, also for a single failed task."""

import asyncio
from typing import Any

import httpx
import pytest

from fuseboard import Default, Outcome, Reason, Refused
from fuseboard.calling.classification import examine, refusal_of
from fuseboard.calling.failures import kind_of
from fuseboard.calling.outcomes import judge, judge_permitted
from fuseboard.calling.retried_call import GivenUp, RetriedCall
from fuseboard.decision import Decision, Permit
from fuseboard.testing import FakeAgent
from tests.agents.retry_world import RETRY, World
from tests.agents.test_classification import caused, flags

REFUSED = Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN, retry_after_ms=50))
LONGER = Refused(Decision(allowed=False, reason=Reason.QUOTA, retry_after_ms=900))
LOST = httpx.ReadError("lost")
NOT_CONNECTED = httpx.ConnectError("refused")
FULL = httpx.PoolTimeout("full")
DEFECT = KeyError("a defect")
CANCELLED = asyncio.CancelledError()


def answered(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://vendor/")
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    response = httpx.Response(status, headers=named, request=request)
    return httpx.HTTPStatusError(str(status), request=request, response=response)


def group(*members: BaseException) -> BaseException:
    return BaseExceptionGroup("several", members)


def of(*members: BaseException) -> Any:
    return group(*members)


def circle() -> BaseException:
    inner = RuntimeError("inner")
    found = group(inner, LOST)
    inner.__cause__ = found
    return found


SAYS: list[tuple[str, BaseException, str]] = [
    ("one member", of(LOST), "RT"),
    ("groups in groups", of(of(of(LOST))), "RT"),
    ("every member may succeed later", of(LOST, answered(503)), "RT"),
    ("one of them would fail again", of(LOST, answered(404)), "T"),
    ("a defect", of(LOST, DEFECT), "TA"),
    ("a refusal says nothing", of(REFUSED), ""),
    ("two refusals", of(REFUSED, of(LONGER)), ""),
    ("a refusal beside a failure", of(REFUSED, LOST), "T"),
    ("a cancelled member beside a failure", of(CANCELLED, LOST), "T"),
    ("only cancelled", of(CANCELLED, of(CANCELLED)), ""),
    ("the process ends", of(KeyboardInterrupt()), ""),
    ("an own shortage", of(FULL), ""),
    ("a wrong key beside a failure", of(answered(401), answered(503)), "TA"),
    ("the longest time to wait", of(answered(429, retry_after="2"), answered(429, retry_after="9")), "RC"),
    ("a request that is too large", of(answered(413), answered(503)), "TD"),
    ("a group is the cause", caused(RuntimeError(), of(LOST)), "RT"),
    ("a member has a cause", of(caused(RuntimeError(), LOST)), "RT"),
    ("what caused a group caused its members", caused(of(RuntimeError()), REFUSED), ""),
    ("a circle", circle(), "TA"),
]


@pytest.mark.parametrize(("error", "expected"), [row[1:] for row in SAYS], ids=[row[0] for row in SAYS])
def test_a_group_says_what_its_members_say_together(error: BaseException, expected: str):
    assert flags(error) == expected


def test_the_longest_wait_of_a_group_counts():
    assert judge(of(answered(429, retry_after="2"), answered(503, retry_after="9"))) == (
        Outcome.FAILURE,
        9000,
    )


def test_a_group_of_a_thousand_groups_ends():
    error = of(LOST)
    for _ in range(1000):
        error = of(error)
    assert flags(error) == "RT"
    assert flags(of(*[LOST] * 5000)) == "RT"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (of(REFUSED), REFUSED),
        (of(of(REFUSED)), REFUSED),
        (of(REFUSED, of(LONGER)), LONGER),
        (of(REFUSED, CANCELLED), REFUSED),
        (caused(RuntimeError(), of(REFUSED)), REFUSED),
        (of(caused(RuntimeError(), REFUSED)), REFUSED),
        (caused(of(RuntimeError()), REFUSED), REFUSED),
        # A defect is not hidden behind the refusal of another task.
        (of(REFUSED, DEFECT), None),
        (of(REFUSED, KeyboardInterrupt()), None),
        (of(CANCELLED), None),
        (of(LOST), None),
    ],
)
def test_a_group_is_a_refusal_if_its_members_are(error: BaseException, expected: Refused | None):
    assert refusal_of(error) is expected


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (of(LOST), "ReadError"),
        (of(of(httpx.ReadTimeout("late"))), "timeout"),
        (of(REFUSED, answered(503)), "HTTP 503"),
        (of(LOST, answered(401)), "HTTP 401"),
    ],
)
def test_the_kind_of_a_failure_is_that_of_the_member_that_says_most(error: BaseException, kind: str):
    assert kind_of(examine(error)) == kind


def permit(*, hurried: bool = False) -> Permit:
    return Permit(made=None, dependency="vendor", generation=1, hurried=hurried)


def test_a_timeout_in_a_hurry_says_nothing_and_the_other_members_do():
    late = httpx.ReadTimeout("late")
    assert judge_permitted(permit(hurried=True), of(late)) == (Outcome.NEUTRAL, 0)
    assert judge_permitted(permit(hurried=True), of(late, LOST))[0] is Outcome.FAILURE
    assert judge_permitted(permit(), of(late))[0] is Outcome.FAILURE


def test_neutral_members_say_nothing():
    neutral = (KeyError,)
    assert judge_permitted(permit(), of(DEFECT), neutral) == (Outcome.NEUTRAL, 0)
    assert judge_permitted(permit(), of(of(DEFECT), CANCELLED), neutral) == (Outcome.NEUTRAL, 0)
    assert judge_permitted(permit(), of(DEFECT, LOST), neutral)[0] is Outcome.FAILURE
    assert judge_permitted(permit(), of(LOST), (ExceptionGroup,)) == (Outcome.NEUTRAL, 0)


def retried(error: BaseException, **options: Any) -> bool:
    world = World(retry=RETRY, clock=lambda: 100.0)
    call = RetriedCall(world.retries, "vendor", idempotent=True, **options)
    call.begin()
    call.admitted()
    assert isinstance(error, Exception)
    call.failed(error)
    return call.given_up is not GivenUp.NOT_RETRYABLE


@pytest.mark.parametrize(
    ("error", "on", "expected"),
    [
        (of(LOST), None, True),
        (of(LOST, NOT_CONNECTED), None, True),
        (of(LOST, DEFECT), None, False),
        (of(LOST, REFUSED), None, False),
        (of(LOST), httpx.TransportError, True),
        (of(DEFECT), (KeyError, httpx.TransportError), True),
        (of(LOST, DEFECT), (KeyError, httpx.TransportError), True),
        (of(LOST, DEFECT), KeyError, False),
        (of(LOST), ExceptionGroup, True),
        (of(LOST, REFUSED), Exception, False),
        (of(LOST, DEFECT), Exception, True),
        (of(DEFECT), lambda error: isinstance(error, KeyError), True),
        (of(LOST, DEFECT), lambda error: isinstance(error, KeyError), False),
        (of(LOST, REFUSED), lambda error: True, False),
    ],
)
def test_a_group_is_retried_if_each_member_would_be(error: BaseException, on: Any, expected: bool):
    assert retried(error, on=on) is expected


async def test_a_refusal_in_a_task_group_has_a_fallback():
    chain = FakeAgent().fallback("vendor", [Default("sorry")])

    async def ask(error: Exception) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails(error))

    answer = await chain.run(lambda: ask(REFUSED))
    assert (answer.value, answer.reason) == ("sorry", "breaker_open")
    assert (await chain.run(lambda: ask(LOST))).reason == "ReadError"
    with pytest.raises(ExceptionGroup):
        await chain.run(lambda: ask(answered(404)))


async def fails(error: Exception) -> None:
    raise error


async def test_tiers_judge_groups_too():
    async def grouped(error: Exception) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails(error))

    agent = FakeAgent()
    assert (await agent.gather_tiers(standard=[grouped(REFUSED)])).standard == (None,)
    with pytest.raises(ExceptionGroup):
        await agent.gather_tiers(standard=[grouped(LOST)])
