"""Timeouts of calls that a deadline gave too little time."""

import anthropic
import httpx
import httpx2
import openai
import pytest
import requests

from fuseboard.calling.outcomes import judge_permitted
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit

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
