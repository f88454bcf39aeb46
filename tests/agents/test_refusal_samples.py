"""Samples of refusals: uniform, bounded, and without anything that identifies a person."""

import itertools
from collections import Counter
from fractions import Fraction
from math import comb

import msgspec
import pytest

from fuseboard import Agent, AgentSettings
from fuseboard.calling.trace import enter_request, leave_request
from fuseboard.contract.policy import Limit, Tier
from fuseboard.contract.refusal_samples import MAX_SAMPLES, DigestKey, RefusalSample, digest_of
from fuseboard.contract.words import Algorithm, Reason
from fuseboard.decision import Decision
from fuseboard.errors import Refused
from fuseboard.reporting.refusal_samples import (
    LINES,
    OF_OTHERS,
    PER_RULE,
    RULES,
    RefusalSamples,
    Reservoir,
    template_of,
)
from fuseboard.subject import Subject
from tests.agents.published import publish
from tests.agents.servers import POLICY

KEY = DigestKey(key=bytes(range(32)))


def refused(rule="requests", **fields):
    return Decision(allowed=False, reason=Reason.QUOTA, rule=rule, tenant="acme", revision=7, **fields)


def sampling(**fields):
    samples = RefusalSamples(**fields)
    samples.take(KEY)
    return samples


@pytest.mark.parametrize(("size", "offered"), [(1, 5), (2, 2), (2, 6), (3, 6)])
def test_every_set_of_refusals_is_kept_with_the_same_probability(size, offered):
    """Exact: every outcome of every random number, with its probability."""
    chances: Counter[frozenset[int]] = Counter()
    for outcome in itertools.product(*(range(count) for count in range(size + 1, offered + 1))):
        numbers = iter(outcome)
        reservoir = Reservoir(size, lambda below, numbers=numbers: next(numbers))
        for thing in range(offered):
            place = reservoir.place()
            if place is not None:
                reservoir.put(place, thing)
        chances[frozenset(reservoir.kept)] += 1
    assert len(chances) == comb(offered, size)
    assert len(set(chances.values())) == 1


def test_the_weights_of_a_rule_add_up_to_its_refusals():
    samples = sampling()
    for _ in range(1000):
        samples.offer(refused())
    samples.offer(refused("seldom"))
    sent = samples.drain()
    weights = {rule: sum(one.weight for one in sent if one.rule == rule) for rule in ("requests", "seldom")}
    assert weights == {"requests": 1000, "seldom": 1}
    assert samples.drain() == ()


def test_a_pod_logs_few_of_its_samples_with_digests_of_the_caller(caplog):
    caplog.set_level("INFO", "fuseboard.refusals")
    samples = sampling()
    for number in range(40):
        subject = Subject(ip="192.0.2.7", endpoint="GET /orders/{id}")
        samples.offer(refused(f"rule-{number}", retry_after_ms=1200), subject)
    assert len(samples.drain()) > LINES
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == LINES
    digest = digest_of(KEY.key, "ip", "192.0.2.7")
    assert lines[0] == (
        "refusal.sampled rule='rule-0' reason=quota dependency='' tenant='acme' endpoint='GET /orders/{id}'"
        f" ip={digest} user=- api_key=- retry_after_ms=1200 stands_for=1 trace=-"
    )
    assert "192.0.2.7" not in "".join(lines)


def test_a_sample_has_the_trace_of_its_request():
    samples = sampling()
    token = enter_request(lambda: f"00-{'a' * 32}-{'b' * 16}-01")
    try:
        samples.offer(refused())
    finally:
        leave_request(token)
    samples.offer(refused("other"))
    assert {one.rule: one.trace for one in samples.drain()} == {"requests": "a" * 32, "other": ""}


def test_a_pod_with_many_rules_keeps_and_sends_a_bounded_number():
    samples = sampling()
    for number in range(500):
        for _ in range(5):
            samples.offer(refused(f"rule-{number}", server="pod-1"), Subject(endpoint="GET /" + "a" * 500))
    sent = samples.drain()
    assert len(sent) == RULES * PER_RULE + OF_OTHERS <= MAX_SAMPLES
    assert len(msgspec.json.encode(sent)) < 16_384
    assert sum(one.weight for one in sent) == pytest.approx(2500)
    msgspec.json.decode(msgspec.json.encode(sent), type=tuple[RefusalSample, ...])


def test_without_a_key_nothing_is_kept():
    samples = RefusalSamples()
    samples.offer(refused())
    samples.take(KEY)
    assert samples.drain() == ()
    samples.offer(refused())
    # The log was switched off.
    samples.take(None)
    samples.take(KEY)
    assert samples.drain() == ()


def test_an_allowed_request_is_no_sample():
    samples = sampling()
    samples.offer(Decision(allowed=True))
    assert samples.drain() == ()


def test_who_asked_leaves_the_pod_only_as_digests():
    samples = sampling()
    subject = Subject(ip="192.0.2.7", user="anna", api_key="sk-1", endpoint="GET /users/anna@example.com")
    samples.offer(refused(), subject)
    (sent,) = samples.drain()
    text = msgspec.json.encode(sent).decode()
    assert not any(secret in text for secret in ("192.0.2.7", "anna", "sk-1"))
    assert sent.ip == digest_of(KEY.key, "ip", "192.0.2.7")
    # The same value as another kind of subject has another digest.
    assert digest_of(KEY.key, "user", "192.0.2.7") != sent.ip
    assert digest_of(bytes(32), "ip", "192.0.2.7") != sent.ip


@pytest.mark.parametrize(
    ("endpoint", "template"),
    [
        ("GET /v1/orders", "GET /v1/orders"),
        ("POST /v1/orders/{id}", "POST /v1/orders/{id}"),
        ("GET /v1/orders/8812?token=x", "GET /v1/orders/{id}"),
        ("GET /users/anna@example.com/orders", "GET /users/{id}/orders"),
        ("GET /t/9f1c2a3b-77aa-4c1e-9a2b-0123456789ab", "GET /t/{id}"),
        ("GET /reset/abcdefghijklmnopqrstuvwxyz", "GET /reset/{id}"),
        ("GET /^orders/(?P<pk>[0-9]+)/$", "GET /^orders/(?P<pk>[0-9]+)/$"),
        ("GET /v1/orders/(?P<pk>[^/.]+)/$", "GET /v1/orders/(?P<pk>[^/.]+)/$"),
        ("", ""),
        ("/plain/17", "/plain/{id}"),
    ],
)
def test_an_endpoint_is_the_template_of_a_route(endpoint, template):
    assert template_of(endpoint) == template


def test_the_weight_of_a_sample_is_exact_for_all_orders():
    """Horvitz-Thompson: each refusal's expected weight is 1."""
    size, offered = 2, 5
    expected: Counter[int] = Counter()
    outcomes = list(itertools.product(*(range(count) for count in range(size + 1, offered + 1))))
    for outcome in outcomes:
        numbers = iter(outcome)
        reservoir = Reservoir(size, lambda below, numbers=numbers: next(numbers))
        for thing in range(offered):
            if (place := reservoir.place()) is not None:
                reservoir.put(place, thing)
        for thing in reservoir.kept:
            expected[thing] += Fraction(offered, size) / len(outcomes)
    assert set(expected.values()) == {1}


async def test_an_agent_samples_the_requests_and_calls_that_it_refuses(limits, redis_url, tmp_path):
    spent = Limit(name="requests", limit=1, window_ms=3_600_000, algorithm=Algorithm.SLIDING_WINDOW)
    publish(limits, msgspec.structs.replace(POLICY, tiers=(Tier(name="free", quotas=(spent,)),)), revision=7)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        samples = agent._runtime.refusal_samples
        samples.take(KEY)
        subject = Subject(ip="192.0.2.7", endpoint="GET /a/17")
        decisions = [await agent.admit_request("acme", subject=subject) for _ in range(3)]
        assert [decision.allowed for decision in decisions] == [True, False, False]
        with pytest.raises(Refused):
            await agent.admit_call("llm", deadline_s=1e-9)
        sent = samples.drain()
    requests = [one for one in sent if not one.dependency]
    assert {(one.rule, one.tenant, one.endpoint, one.reason) for one in requests} == {
        ("requests", "acme", "GET /a/{id}", Reason.QUOTA)
    }
    assert sum(one.weight for one in requests) == 2
    assert [(one.dependency, one.reason) for one in sent if one.dependency] == [("llm", Reason.QUEUE_TIMEOUT)]
