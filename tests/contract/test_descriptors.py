"""Rules for descriptors, as a part of a policy."""

import pytest
from msgspec.structs import replace

from fuseboard.contract.descriptors import (
    MAX_DOMAINS,
    Charge,
    DescriptorDomain,
    DescriptorRule,
    with_requests,
)
from fuseboard.contract.limits import Limit, PolicyError
from fuseboard.contract.policy import Policy, decode_policy, encode_policy
from fuseboard.contract.words import Algorithm, Period
from tests.contract.descriptor_examples import DESCRIBED_POLICY


def read(*domains: DescriptorDomain) -> Policy:
    return decode_policy(encode_policy(replace(DESCRIBED_POLICY, descriptors=domains)))


def filled(name: str, characters: int) -> DescriptorDomain:
    """A domain of about this size."""
    rules = tuple(
        DescriptorRule(key=f"{number:0>480}", unlimited=True) for number in range(characters // 515)
    )
    return DescriptorDomain(domain=name, rules=rules)


def test_a_rule_that_contradicts_itself_refuses_the_policy_naming_its_place() -> None:
    child = DescriptorRule(key="path", value="/a", share=True, unlimited=True)
    domain = DescriptorDomain(
        domain="edge", rules=(DescriptorRule(key="user"), DescriptorRule(key="tenant", then=(child,)))
    )
    with pytest.raises(PolicyError, match=r"descriptors\.edge rule 2\.1: share_threshold needs"):
        read(domain)


def test_calls_to_a_dependency_are_not_counted_after_the_work() -> None:
    tokens = DescriptorRule(key="to", dependency="payments", charge=Charge.AFTER, measure="tokens")
    assert read(DescriptorDomain(domain="edge", rules=(tokens,))).descriptors
    calls = replace(tokens, measure="calls")
    with pytest.raises(PolicyError, match=r"rule 1: A dependency counts calls as they begin"):
        read(DescriptorDomain(domain="edge", rules=(calls,)))


def test_two_files_of_one_domain_refuse_the_policy() -> None:
    with pytest.raises(PolicyError, match="descriptors: 'edge' is listed twice"):
        read(DescriptorDomain(domain="edge"), DescriptorDomain(domain="edge"))


def test_more_domains_than_allowed_refuse_the_policy() -> None:
    domains = [DescriptorDomain(domain=f"d{number}") for number in range(MAX_DOMAINS + 1)]
    assert len(read(*domains[:-1]).descriptors) == MAX_DOMAINS
    with pytest.raises(ValueError, match="descriptors"):
        read(*domains)


def test_all_domains_together_are_bounded() -> None:
    domains = [filled(f"d{number}", 60_000) for number in range(5)]
    assert len(read(*domains[:-1]).descriptors) == 4
    with pytest.raises(PolicyError, match=r"descriptors: All domains have .* 262,144 are allowed"):
        read(*domains)


def test_a_stated_limit_keeps_the_unit_of_the_rule() -> None:
    bucket = Limit(name="slow", limit=10, window_ms=60_000, burst=10)
    daily = Limit(
        name="slow", limit=10, window_ms=86_400_000, algorithm=Algorithm.FIXED_WINDOW, period=Period.DAY
    )
    assert with_requests(bucket, 25) == replace(bucket, limit=25, burst=25)
    assert with_requests(bucket, 0) == replace(bucket, limit=0, burst=1)
    assert with_requests(daily, 25) == replace(daily, limit=25)
