"""The rate limit service agrees with a model of rules and counters, and no bytes break it."""

import json
import random
from collections import Counter
from time import time
from typing import Any

import yaml
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from fuseboard.agent_api.asks import MAX_ASKS, check_asks
from fuseboard.contract.descriptor_file import read_file
from fuseboard.contract.descriptors import (
    MAX_DOMAINS,
    DescriptorDomain,
    DescriptorRules,
    Match,
    Verdict,
    with_requests,
)
from fuseboard.contract.limits import Limit
from fuseboard.envoy import asks
from fuseboard.envoy import rls_pb2 as pb
from fuseboard.envoy.asks import InvalidMessage, Questions
from tests.envoy.conftest import Answering, policy_of
from tests.envoy.descriptor_cases import KEYS, LONG
from tests.envoy.messages import OK, OVER, codes, descriptor, request

VALUES, SENT = ("", "x", "x*", "*"), ("x", "xy", "q")


def _rules(chance: random.Random, levels: int) -> list[dict[str, Any]]:
    """Rules with windows that last longer than the test."""
    found = []
    for key, value in chance.sample([(key, value) for key in KEYS for value in VALUES], 4):
        rule: dict[str, Any] = {"key": key, "value": value}
        name = chance.choice(["", "one", "two"])
        if chance.random() < 0.1:
            rule["rate_limit"] = {"unlimited": True, "name": name}
        elif chance.random() < 0.8:
            limit = {"unit": chance.choice(LONG), "requests_per_unit": chance.randint(0, 8), "name": name}
            if chance.random() < 0.1:
                limit["replaces"] = [{"name": "two" if name == "one" else "one"}]
            rule |= {"rate_limit": limit, "shadow_mode": chance.random() < 0.2}
            if chance.random() < 0.3:
                rule["accepts_override"] = chance.randint(1, 8)
        if "*" in value and chance.random() < 0.3:
            rule["share_threshold"] = True
        if levels > 1 and chance.random() < 0.4:
            rule["descriptors"] = _rules(chance, levels - 1)
        found.append(rule)
    return found


def _request(chance: random.Random) -> dict[str, Any]:
    def one() -> dict[str, Any]:
        count = chance.choice([1, 1, 1, 2])
        return {
            "entries": [(chance.choice(KEYS), chance.choice(SENT)) for _ in range(count)],
            "hits": chance.choice([None, None, 0, 1, 2]),
            "stated": chance.choice([None, None, (chance.randint(0, 9), chance.choice([pb.HOUR, pb.DAY]))]),
            "negative": chance.random() < 0.05,
        }

    return {"hits": chance.randint(0, 2), "descriptors": [one() for _ in range(chance.randint(1, 3))]}


class Model:
    """The counters of one domain."""

    def __init__(self, domain: DescriptorDomain) -> None:
        self.domain = domain.domain
        self.rules = DescriptorRules([domain])
        self.spent: Counter[tuple[str, ...]] = Counter()

    def decide(self, asked: dict[str, Any]) -> tuple[bool, list[tuple[str, ...]], dict[int, int]]:
        """Whether it is allowed; the counters that lack something; what is left by places, if allowed."""
        entries = [one["entries"] for one in asked["descriptors"]]
        matches = self.matches = self.rules.match(self.domain, entries)
        self.limits = self._limits(matches, asked["descriptors"])
        checked: Counter[tuple[str, ...]] = Counter()
        charged: Counter[tuple[str, ...]] = Counter()
        places: dict[int, tuple[tuple[str, ...], bool]] = {}
        for place, (match, one) in enumerate(zip(matches, asked["descriptors"], strict=True)):
            if match.verdict is not Verdict.LIMIT or one["negative"]:
                continue
            hits = (asked["hits"] or 1) if one["hits"] is None else one["hits"]
            (charged if hits else checked)[match.counted] += hits or 1
            places[place] = (match.counted, bool(hits))
        for wanted in (checked, charged):
            lacking = [counted for counted, hits in wanted.items() if self._lacks(counted, hits)]
            if any(not self.limits[counted].shadow for counted in lacking):
                return False, lacking, {}
            if wanted is checked:
                before = {counted: self._left(counted) for counted in checked}
            else:
                for counted, hits in wanted.items():
                    if counted not in lacking:  # a shadow limit without room counts nothing
                        self.spent[counted] += hits
        left = {
            place: self._left(counted) if hits else before[counted]
            for place, (counted, hits) in places.items()
        }
        return True, [], {place: max(0, count) for place, count in left.items()}

    def _limits(
        self, matches: tuple[Match, ...], asked: list[dict[str, Any]]
    ) -> dict[tuple[str, ...], Limit]:
        found: dict[tuple[str, ...], Limit] = {}
        for match, one in zip(matches, asked, strict=True):
            if match.verdict is not Verdict.LIMIT:
                continue
            assert match.rule is not None
            limit = match.rule.limit
            assert limit is not None
            stated = one["stated"]
            if stated and match.rule.accepts_override and stated[1] == asks.unit_of(limit):
                limit = with_requests(limit, min(stated[0], match.rule.accepts_override))
            known = found.get(match.counted, limit)
            found[match.counted] = min(known, limit, key=lambda one: one.limit)
        return found

    def _left(self, counted: tuple[str, ...]) -> int:
        return self.limits[counted].limit - self.spent[counted]

    def _lacks(self, counted: tuple[str, ...], hits: int) -> bool:
        return self._left(counted) < hits


def made(number: int) -> list[tuple[DescriptorDomain, list[dict[str, Any]]]]:
    """Domains with their requests, as the number of a seed decides."""
    chance, found = random.Random(number), []
    for case in range(MAX_DOMAINS):
        file = {"domain": f"case{case}", "descriptors": _rules(chance, 2)}
        read = read_file(yaml.safe_dump(file, sort_keys=False))
        assert read.domain is not None, read.problems
        found.append((read.domain, [_request(chance) for _ in range(15)]))
    return found


async def test_answers_are_those_of_a_model_of_the_counters(answering: Answering) -> None:
    number = random.randrange(2**32)
    cases = made(number)
    policy = policy_of(domains=[domain for domain, _ in cases])
    refused = allowed = 0
    async with answering(policy) as envoy:
        for domain, requests in cases:
            model, hour = Model(domain), time() // 3600
            for asked in requests:
                answer = await envoy.ask(_body(domain.domain, asked))
                is_allowed, lacking, left = model.decide(asked)
                if time() // 3600 != hour:
                    break  # the counters have begun again
                said = f"seed {number}, {domain.domain}: {json.dumps(asked)}"
                assert codes(answer)[0] == (OK if is_allowed else OVER), said
                allowed, refused = allowed + is_allowed, refused + (not is_allowed)
                over = [place for place, status in enumerate(answer.statuses) if status.code == OVER]
                if is_allowed:
                    assert over == [], said
                    found = {place: answer.statuses[place].limit_remaining for place in left}
                    assert found == left, said
                else:
                    # A refusal that the pod remembers names one limit that lacks something.
                    matches = model.matches
                    assert over, said
                    assert {matches[place].counted for place in over} <= set(lacking), said
    assert min(allowed, refused) > 10, number


def _body(domain: str, asked: dict[str, Any]) -> bytes:
    descriptors = [
        descriptor(*one["entries"], hits=one["hits"], stated=one["stated"], is_negative_hits=one["negative"])
        for one in asked["descriptors"]
    ]
    return request(*descriptors, domain=domain, hits=asked["hits"])


EVERY_WORD = read_file(
    """
domain: edge
descriptors:
  - key: a
    means: tenant
    descriptors:
      - {key: a, means: ip}
      - {key: b, dependency: payments}
  - key: b
    means: user
    descriptors:
      - {key: a, rate_limit: {unit: minute, requests_per_unit: 3}, accepts_override: 9}
      - {key: b, means: endpoint, measure: tokens, charge: after}
  - key: c
    means: endpoint
  - key: d
    value: "*x*"
    share_threshold: true
    rate_limit: {unit: second, requests_per_unit: 1}
    measure: tokens
"""
).domain
TEXT = st.sampled_from([b"", b"x", b"\xff", b"\x00", b"192.0.2.1", b"x" * 300]) | st.binary(max_size=30)
ENTRY = st.builds(
    pb.RateLimitDescriptor.Entry, key=st.sampled_from([b"a", b"b", b"c", b"d"]) | TEXT, value=TEXT
)
MESSAGES = st.builds(
    lambda domain, descriptors, hits: pb.RateLimitRequest(
        domain=domain, descriptors=descriptors, hits_addend=hits
    ).SerializeToString(),
    st.just(b"edge") | TEXT,
    st.lists(
        st.builds(
            lambda entries, hits, limit, negative: pb.RateLimitDescriptor(
                entries=entries,
                hits_addend=None if hits is None else {"value": hits},
                limit=limit,
                is_negative_hits=negative,
            ),
            st.lists(ENTRY, max_size=3),
            st.none() | st.integers(0, 2**64 - 1),
            st.none()
            | st.builds(
                pb.RateLimitDescriptor.RateLimitOverride,
                requests_per_unit=st.integers(0, 2**32 - 1),
                unit=st.integers(0, 2**31 - 1),
            ),
            st.booleans(),
        ),
        max_size=5,
    ),
    st.integers(0, 2**32 - 1),
)


def _torn(body: bytes, places: list[tuple[int, int]]) -> bytes:
    torn = bytearray(body)
    for place, value in places:
        if torn:
            torn[place % len(torn)] = value
    return bytes(torn)


BODIES = (
    st.binary(max_size=200)
    | MESSAGES
    | st.builds(_torn, MESSAGES, st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=3))
)


@settings(max_examples=300)
@given(BODIES)
def test_any_bytes_are_valid_questions_or_no_message(body: bytes) -> None:
    assert EVERY_WORD is not None
    try:
        asked = asks.read(DescriptorRules([EVERY_WORD]), "production", body)
    except InvalidMessage:
        return
    assert 1 <= len(asked.matches) <= MAX_ASKS
    for together in (asked.asks, asked.checks, asked.after):
        if together:
            check_asks(together)
    for _, call in asked.calls:
        assert call.cost >= 1


async def test_any_bytes_get_an_answer_and_no_defect(answering: Answering) -> None:
    number, bodies = random.randrange(2**32), []

    @seed(number)
    @settings(max_examples=300, database=None, phases=[Phase.generate], deadline=None)
    @given(BODIES)
    def make(body: bytes) -> None:
        bodies.append(body)

    make()
    assert EVERY_WORD is not None
    async with answering(policy_of(domains=[EVERY_WORD])) as envoy:
        for body in bodies:
            try:
                answer = await envoy.ask(body)
            except InvalidMessage:
                continue
            assert answer.overall_code in (OK, OVER), f"seed {number}: {body!r}"
        service = envoy.service
        assert service.defects == 0, number
        assert envoy.agent.defects == 0, number
        assert service.invalid + service.allowed + service.refused == len(bodies)


def test_requests_use_no_more_memory_than_the_bounds_say() -> None:
    assert EVERY_WORD is not None
    questions, prepared = Questions("production", most=100), DescriptorRules([EVERY_WORD])
    for number in range(1_000):
        questions.read(prepared, request(descriptor(("b", f"user-{number}"))))
    assert len(questions) == 100
    long = request(*[descriptor(("b", "x" * 50))] * MAX_ASKS)
    assert len(long) > asks.MAX_REMEMBERED_BYTES
    questions.read(prepared, long)
    assert questions.read(prepared, long) is not questions.read(prepared, long)
