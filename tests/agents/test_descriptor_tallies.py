"""What Envoy asked for goes out by rule, in small parts until each is answered, without ids of callers."""

from collections import Counter

import pytest
from msgspec.structs import replace

from fuseboard.contract.descriptor_tallies import (
    MAX_DOMAIN,
    MAX_EXAMPLE,
    MAX_PATH,
    MAX_TALLIED_RULES,
    DescriptorTally,
    RuleTally,
    UnmatchedTally,
    rule_of,
)
from fuseboard.contract.descriptors import DescriptorDomain, DescriptorRule, DescriptorRules
from fuseboard.contract.policy import Limit
from fuseboard.contract.sync import BreakerView, decode_request, encode
from fuseboard.reporting.descriptor_tallies import (
    KEPT_S,
    MAX_BYTES,
    MAX_DOMAINS,
    MAX_LISTS,
    MAX_RULES,
    DescriptorTallies,
    example_of,
)
from fuseboard.reporting.heartbeat import FIELDS_BYTES, encode_bounded
from tests.contract.examples import SMALLEST_REQUEST

LIMIT = Limit(name="rate_limit", limit=10, window_ms=60_000)
EDGE = DescriptorDomain(
    domain="edge",
    rules=(
        DescriptorRule(key="tenant", then=(DescriptorRule(key="path", value="/v1/*", limit=LIMIT),)),
        DescriptorRule(key="health", unlimited=True, name="health", replaces=("slow",)),
        DescriptorRule(key="slow", limit=LIMIT, name="slow"),
    ),
)
RULES = DescriptorRules([EDGE])
KNOWN = (("tenant", "acme"), ("path", "/v1/orders"))


class Setting:
    def __init__(self):
        self.now = 0.0
        self.tallies = DescriptorTallies(now=lambda: self.now)

    def ask(self, *descriptors, domain="edge", refused=(), shadow=()):
        matches = RULES.match(domain, descriptors)
        numbers = range(len(descriptors))
        over, would = [n in refused for n in numbers], [n in shadow for n in numbers]
        self.tallies.note(domain, descriptors, matches, over, would)

    def parts(self):
        """Every part that is waiting, each answered."""
        found = []
        while (part := self.tallies.next()) is not None:
            self.tallies.taken()
            found.append(part)
        return found


def test_each_rule_is_counted_with_those_above_it():
    setting = Setting()
    setting.ask(KNOWN)
    setting.ask(KNOWN, (("slow", "x"),), refused=[0], shadow=[1])
    (part,) = setting.parts()
    assert part == DescriptorTally(
        number=1, rules=(RuleTally("edge", "tenant > path=/v1/*", 2, 1), RuleTally("edge", "slow", 1, 0, 1))
    )
    assert setting.parts() == []


def test_a_rule_that_another_one_replaces_counts_nothing():
    setting = Setting()
    setting.ask((("health", "ok"),), (("slow", "x"),))
    assert setting.parts()[0].rules == (RuleTally("edge", "health", 1),)


def test_descriptors_without_a_rule_are_counted_by_keys_with_three_examples():
    setting = Setting()
    for name in ("acme", "acme", "globex", "initech", "umbrella"):
        setting.ask((("tenant", name), ("method", "GET")))
    setting.ask((("path", "/"),), domain="unknown")
    (part,) = setting.parts()
    assert part.rules == ()
    assert part.unmatched == (
        UnmatchedTally("edge", "tenant > method", 5, ("acme > GET", "globex > GET", "initech > GET")),
        UnmatchedTally("unknown", "path", 1, ("/",)),
    )


@pytest.mark.parametrize(
    ("values", "example"),
    [
        (["acme"], "acme"),
        (["10.1.2.3"], "{id}"),
        (["2001:db8::12f"], "{id}"),
        (["8812"], "{id}"),
        (["anna@example.com", "/users/8812/orders?token=x"], "{id} > /users/{id}/orders"),
        (["GET /users/0f8fad5b-d9cb-469f-a165-70867728950e"], "GET /users/{id}"),
        (["+4915112345678"], "+{id}"),
        (["0123456789abcdef" * 20], "{id}"),
        (["x" * 24, "y" * 24], f"{'x' * 24} > {'y' * 13}"),
    ],
)
def test_an_example_is_short_and_has_no_id(values, example):
    assert example_of(values) == example
    assert len(example) <= MAX_EXAMPLE


def test_a_part_is_repeated_until_it_is_answered():
    setting = Setting()
    setting.ask(KNOWN)
    part = setting.tallies.next()
    setting.ask(KNOWN, (("tenant", "acme"),))
    assert setting.tallies.next() is part
    setting.tallies.taken()
    second = setting.tallies.next()
    assert (second.number, second.rules) == (2, (RuleTally("edge", "tenant > path=/v1/*", 1),))
    assert second.unmatched == (UnmatchedTally("edge", "tenant", 1, ("acme",)),)


def test_what_no_gateway_took_for_long_is_forgotten():
    """It would be in the figures of the wrong quarter of an hour."""
    setting = Setting()
    setting.ask(KNOWN)
    assert setting.tallies.next() is not None
    setting.ask((("tenant", "acme"),))
    setting.now += KEPT_S + 1
    assert setting.tallies.next() is None
    setting.ask(KNOWN)
    assert setting.tallies.next().rules == (RuleTally("edge", "tenant > path=/v1/*", 1),)


def test_many_rules_go_out_in_parts_that_are_bounded_and_add_up():
    rules = tuple(DescriptorRule(key=f"key-{n}", value="v" * (n % 180), limit=LIMIT) for n in range(600))
    setting, known = Setting(), DescriptorRules([DescriptorDomain(domain="edge", rules=rules)])
    for rule in rules:
        descriptor = ((rule.key, rule.value),)
        setting.tallies.note("edge", [descriptor], known.match("edge", [descriptor]), [True], [False])
    parts, summed = setting.parts(), Counter()
    for part in parts:
        assert len(part.rules) <= MAX_TALLIED_RULES
        assert len(encode(part)) < MAX_BYTES + 200
        summed.update({one.rule: one.asked for one in part.rules})
    assert summed == {rule_of((rule,)): 1 for rule in rules}


def test_memory_is_bounded_whatever_envoy_sends():
    setting = Setting()
    for domain in range(MAX_DOMAINS + 5):
        for n in range(MAX_LISTS + 5):
            setting.ask(((f"key-{n}", "x"),), domain=f"domain-{domain}")
    many = DescriptorRules(
        [
            DescriptorDomain(
                domain="domain-1",
                rules=tuple(DescriptorRule(key=f"r{n}", limit=LIMIT) for n in range(MAX_RULES + 7)),
            )
        ]
    )
    for n in range(MAX_RULES + 7):
        descriptor = ((f"r{n}", "x"),)
        setting.tallies.note("domain-1", [descriptor], many.match("domain-1", [descriptor]), [False], [False])
    parts = setting.parts()
    assert sum(len(part.unmatched) for part in parts) == MAX_DOMAINS * MAX_LISTS
    assert sum(len(part.rules) for part in parts) == MAX_RULES
    assert sum(part.left_out for part in parts) == 5 * (MAX_LISTS + 5) + MAX_DOMAINS * 5 + 7
    for part in parts:
        assert decode_request(encode(replace(SMALLEST_REQUEST, descriptors=part))).descriptors == part


def test_long_names_are_shortened_and_stay_apart():
    setting = Setting()
    setting.ask((("k" * 600, "x"),), (("k" * 599 + "l", "x"),), domain="d" * 400)
    (part,) = setting.parts()
    first, second = part.unmatched
    assert len(first.domain) == MAX_DOMAIN
    assert first.keys != second.keys
    assert first.keys[:180] == second.keys[:180] == "k" * 180
    long = (DescriptorRule(key="k" * 500), DescriptorRule(key="l"))
    assert len(rule_of(long)) == MAX_PATH
    decode_request(encode(replace(SMALLEST_REQUEST, descriptors=part)))


def test_a_heartbeat_that_is_cut_keeps_its_tally():
    """What a tally lists is sent once, so it must not be left out."""
    breakers = tuple(BreakerView(dependency=f"dependency-{n}-{'x' * 40}") for n in range(500))
    setting = Setting()
    setting.ask(KNOWN)
    part = setting.tallies.next()
    body = encode_bounded(replace(SMALLEST_REQUEST, breakers=breakers, descriptors=part))
    kept = decode_request(body)
    assert len(kept.breakers) < 500
    assert kept.descriptors == part
    assert len(body) <= FIELDS_BYTES + MAX_BYTES
