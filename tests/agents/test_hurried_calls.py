"""Timeouts of calls that a deadline gave too little time."""

from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
import redis
import requests
import urllib3

from fuseboard.calling.outcomes import judge_permitted
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit

POOL: Any = None


def vendor_error(cause: Exception) -> Exception:
    """As a client raises it that wraps every error."""
    error = RuntimeError("no answer")
    error.__cause__ = cause
    return error


SENT = httpx2.Request("POST", "https://vendor.example.com/v1/messages")


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        httpx.ReadTimeout("late"),
        httpx2.ReadTimeout("late"),
        requests.ReadTimeout("late"),
        openai.APITimeoutError(request=SENT),
        anthropic.APITimeoutError(request=SENT),
        # M2 of the other reader: the body was late, which requests and other clients wrap.
        requests.ConnectionError(urllib3.exceptions.ReadTimeoutError(POOL, "/", "late")),
        redis.exceptions.TimeoutError("late"),
        vendor_error(httpx.ReadTimeout("late")),
    ],
    ids=lambda error: f"{type(error).__module__}.{type(error).__name__}",
)
def test_a_timeout_that_a_deadline_shortened_says_nothing_about_the_vendor(error: Exception) -> None:
    usual, hurried = (
        Permit(made=Decision(allowed=True), dependency="api", generation=1, hurried=hurried)
        for hurried in (False, True)
    )
    assert judge_permitted(usual, error)[0] is Outcome.FAILURE
    assert judge_permitted(hurried, error) == (Outcome.NEUTRAL, 0)
    assert judge_permitted(hurried, ConnectionResetError())[0] is Outcome.FAILURE
