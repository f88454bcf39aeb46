"""What a call reserves: learned from those before it, rounded up, and never what a limit cannot admit."""

import base64
import json
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.policy import ConfigHead, TenantRecord
from fuseboard.contract.words import ConfigSource
from fuseboard.llm.dialects import DIALECTS
from fuseboard.llm.dialects.dialect import Asked
from fuseboard.llm.estimate import (
    DATA_LETTERS,
    MAX_MODELS,
    MIN_ANSWERS,
    STEP,
    UNBOUNDED,
    Estimates,
    Learned,
    estimates_of,
    letters_in,
    stepped,
)
from fuseboard.llm.model_call import ModelCall
from fuseboard.llm.usage import MEASURES, Usage, measures_of
from tests.agents.limit_kinds import window
from tests.llm.pods import QUOTAS, RULES


def used(fresh: int, output: int, letters: int = 0) -> Usage:
    return Usage(fresh=fresh, output=output, letters=letters, has_input=True, has_output=True)


def test_before_enough_answers_the_request_says_how_long_its_answer_may_be():
    learned = Learned()
    for _ in range(MIN_ANSWERS):
        assert learned.next_output(4096) == 4096
        assert learned.next_output(None) == UNBOUNDED
        learned.add(300, 100, used(100, 400))
    assert learned.next_output(4096) == 400
    assert learned.next_output(50) == 50
    assert learned.next_output(None) == 400


def test_the_reserve_of_an_output_is_the_mean_and_two_mean_deviations():
    learned, random = Learned(), Random(7)
    for _ in range(2000):
        learned.add(300, 100, used(100, round(random.gauss(400, 60))))
    # The mean deviation of a normal distribution is 0.8 of the standard deviation.
    assert learned.next_output(4096) == pytest.approx(400 + 2 * 0.8 * 60, rel=0.05)
    # The vendor answers longer from now on.
    for _ in range(300):
        learned.add(300, 100, used(100, round(random.gauss(900, 60))))
    assert learned.next_output(4096) >= 900


def test_letters_per_token_are_learned_with_a_margin():
    learned = Learned()
    assert learned.next_input(3000) == math.ceil(1000 * 1.05)
    for _ in range(200):
        learned.add(5000, 1000, used(1000, 200, letters=1200))
    assert learned.input_of(5000) == pytest.approx(1000, rel=0.02)
    assert learned.next_input(5000) == pytest.approx(1050, rel=0.02)
    assert learned.output_of(600) == pytest.approx(100, rel=0.02)


def test_an_image_is_not_estimated_by_the_length_of_its_base64():
    image = base64.b64encode(bytes(range(256)) * 4000).decode()
    text = "What is this? Say it shortly, please. " * 500
    short = json.dumps({"text": text, "url": "data:image/png;base64,"})
    assert letters_in(short.encode()) == len(short)
    for url in (image, f"data:image/png;base64,{image}"):
        body = json.dumps({"text": text, "url": url}).encode()
        assert letters_in(body) == pytest.approx(len(text) + DATA_LETTERS, abs=50)
    # These are text: the end of the first alone is like base64.
    for said in (f"{text},word", "ä" * 5000, "a.b" * 5000):
        body = json.dumps({"text": said}, ensure_ascii=False).encode()
        assert letters_in(body) == len(body)


def test_tokens_that_a_limit_does_not_count_are_not_reserved():
    learned = Learned()
    cached = Usage(fresh=100, cached=9900, output=10, has_input=True, has_output=True)
    for _ in range(200):
        learned.add(30_000, 100, cached)
    assert learned.next_input(30_000) == pytest.approx(105, rel=0.1)


@given(st.integers(0, 10**9))
def test_a_reserve_is_at_most_one_step_above_the_estimate(tokens: int):
    rounded = stepped(tokens)
    assert max(1, tokens) <= rounded <= max(1, tokens) * STEP + 1


def test_like_estimates_are_rounded_to_one_reserve():
    assert len({stepped(tokens) for tokens in range(1000, 1200)}) <= 2


@pytest.mark.parametrize(
    ("known", "guessed", "reserve"),
    [
        (900, 0, 1000),
        (1000, 0, 1000),
        (1100, 0, 1100),
        (100, 64_000, 1000),
        (1100, 64_000, 1100),
        (0, 10**400, 1000),
    ],
)
def test_rounding_and_long_answers_make_no_call_impossible(known: int, guessed: int, reserve: int):
    assert stepped(known, guessed, 1000) == reserve


def snapshot(tenants: dict[str, TenantRecord] | None = None) -> Snapshot:
    found = Snapshot(head=ConfigHead(epoch=1, revision=1, hash=""), policy=RULES, source=ConfigSource.DISK)
    for tenant, record in (tenants or {}).items():
        found.tenants.put(tenant, record)
    return found


def test_only_measures_that_limits_count_are_stated():
    assert measures_of(snapshot(), "unknown", "") == {}
    assert set(measures_of(snapshot(), "llm", "")) == set(MEASURES)
    few = replace(RULES.dependencies[0], vendor_limits=(window(500, name="tokens", measure="tokens"),))
    made = Snapshot(
        head=ConfigHead(epoch=1, revision=1, hash=""),
        policy=replace(RULES, dependencies=(few,)),
        source=ConfigSource.DISK,
    )
    assert measures_of(made, "llm", "") == {"tokens": 500}
    assert measures_of(None, "llm", "") == {}


def test_quotas_of_the_tenant_bound_the_reserve():
    small = window(77, name=QUOTAS[1].name, measure="tokens")
    found = measures_of(snapshot({"acme": TenantRecord(tier="free", quotas=(small,))}), "llm", "acme")
    assert found["tokens"] == 77
    assert measures_of(snapshot(), "llm", "acme")["tokens"] == 1_000_000
    # Parents may have any limit.
    assert set(measures_of(snapshot(), "unknown", "acme")) == set(MEASURES)


def test_every_measure_is_reserved_because_a_cost_of_nothing_cannot_be_corrected():
    call = ModelCall(
        DIALECTS[2],
        Asked("m", most=0),
        "llm",
        model="m",
        price=None,
        letters=300,
        learned=Learned(),
        hides=False,
        options={},
    )
    reserve = call.reserve(dict.fromkeys(MEASURES))
    assert min(reserve.values()) == 1
    assert reserve["input_tokens"] == reserve["tokens"] == stepped(105)


def test_clients_of_one_agent_learn_together_and_models_are_bounded():
    class Agent:
        pass

    agent = Agent()
    assert estimates_of(agent) is estimates_of(agent)
    assert estimates_of(agent) is not estimates_of(Agent())
    estimates = Estimates()
    first = estimates.find("llm", "/messages", "m")
    assert estimates.find("llm", "/messages", "m") is first
    for number in range(2 * MAX_MODELS):
        estimates.find("llm", "/messages", str(number))
    assert len(estimates._known) <= MAX_MODELS
