"""The descriptors that a pod answered for Envoy, in parts that follow each other.

They are differences, as in ``tallies``: a pod repeats a part until it has an answer, and a gateway counts its
number once. The values of descriptors belong to callers. They stay in the pod, but for a few short examples
of descriptors that no rule matches, without ids.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Annotated

from msgspec import Meta, Struct

from fuseboard.contract.descriptor_words import path_text, rules_of
from fuseboard.contract.descriptors import DescriptorDomain, DescriptorRule
from fuseboard.contract.tallies import Count

#: Rules, and lists of keys that no rule matches, in one tally. Pods send fewer.
MAX_TALLIED_RULES, MAX_UNMATCHED = 200, 100
#: Characters of a domain, of a rule with the rules above it, and of a list of keys.
MAX_DOMAIN, MAX_PATH, MAX_KEYS = 100, 200, 200
#: Examples of descriptors with the same keys, and the characters of one.
MAX_EXAMPLES, MAX_EXAMPLE = 3, 40

DomainText = Annotated[str, Meta(min_length=1, max_length=MAX_DOMAIN)]
PathText = Annotated[str, Meta(min_length=1, max_length=MAX_PATH)]
KeysText = Annotated[str, Meta(max_length=MAX_KEYS)]
Example = Annotated[str, Meta(max_length=MAX_EXAMPLE)]


class RuleTally(Struct, frozen=True, array_like=True, gc=False):
    """Descriptors that one rule decided since the last tally that lists it."""

    domain: DomainText
    #: The name that ``rule_of`` gives to it.
    rule: PathText
    asked: Count
    refused: Count = 0
    #: Descriptors that the rule would have refused if it were not in shadow mode.
    shadow: Count = 0


class UnmatchedTally(Struct, frozen=True, array_like=True, gc=False):
    """Descriptors with the same keys that no rule matched since the last tally that lists them."""

    domain: DomainText
    #: The words that ``joined`` makes of them.
    keys: KeysText
    asked: Count
    #: Values of some of them, joined like the keys.
    examples: Annotated[tuple[Example, ...], Meta(max_length=MAX_EXAMPLES)] = ()


class DescriptorTally(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    #: Rises by one with each tally of this process.
    number: Annotated[int, Meta(ge=1, le=2**53)]
    rules: Annotated[tuple[RuleTally, ...], Meta(max_length=MAX_TALLIED_RULES)] = ()
    unmatched: Annotated[tuple[UnmatchedTally, ...], Meta(max_length=MAX_UNMATCHED)] = ()
    #: Descriptors of rules, or with keys, for which the pod had no room.
    left_out: Count = 0


def rule_of(path: tuple[DescriptorRule, ...]) -> str:
    """The name of a rule in tallies, from the rules of all entries."""
    return shortened(path_text(path), MAX_PATH)


def known_rules(domains: Iterable[DescriptorDomain]) -> dict[str, frozenset[str]]:
    """Domain -> the names of its rules in tallies."""
    return {
        shortened(domain.domain, MAX_DOMAIN): frozenset(rule_of(path) for _, path in rules_of(domain))
        for domain in domains
    }


def joined(words: Iterable[str]) -> str:
    """Keys or values of a descriptor, as the texts of rules are joined."""
    return " > ".join(words)


def shortened(text: str, most: int) -> str:
    """``text`` with at most ``most`` characters. The end of a longer one is a digest, so names stay apart."""
    if len(text) <= most:
        return text
    digest = blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()
    return f"{text[: most - len(digest) - 1]}…{digest}"
