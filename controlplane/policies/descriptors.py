"""Rules for descriptors of Envoy: their stored text, and what pods get of it."""

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

from controlplane.policies.models import DescriptorFile
from fuseboard.contract.descriptor_file import DescriptorFile as ReadFile
from fuseboard.contract.descriptor_file import read_file
from fuseboard.contract.descriptors import (
    MAX_DOMAINS,
    DescriptorDomain,
    DescriptorRule,
    Place,
    problems_of_all,
)
from fuseboard.contract.limits import PolicyError

#: Bytes of the texts of all domains of an environment, with their comments.
MAX_TEXTS = 1024 * 1024


@lru_cache(maxsize=2 * MAX_DOMAINS)
def read_text(text: str) -> ReadFile:
    """Read a text once: each published revision needs the rules of every text."""
    return read_file(text)


def domain_of(row: DescriptorFile) -> DescriptorDomain:
    """The rules as pods get them. Raises ``PolicyError`` for a text that an edit would refuse."""
    read = read_text(row.file)
    if read.domain is None:
        [line, problem] = read.problems[0]
        raise PolicyError(f"descriptors.{row.name}.file line {line}: {problem}")
    return read.domain


def wrong_text(name: str, text: str, dependencies: Collection[str]) -> Iterator[str]:
    """Yield every problem of the text of a domain, with its line."""
    read = read_text(text)
    for line, problem in read.problems:
        yield f"Line {line} of the file: {problem}" if line else problem
    if read.domain is None:
        return
    if read.domain.domain != name:
        yield f"Line {read.lines[()]} of the file: its domain is {read.domain.domain!r}, not {name!r}."
    for rule, line in _with_lines(read):
        if rule.dependency and rule.dependency not in dependencies:
            yield f"Line {line} of the file: there is no dependency {rule.dependency!r}: create it first."


def wrong_together(
    state: Mapping[tuple[str, str], Any], changed: Collection[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield domain and message for what all domains of an environment are too many or too large for.

    One of the domains that are ``changed`` is named, not one that was there before.
    """
    texts = {
        name: fields["file"] for (kind, name), fields in state.items() if kind == "descriptors" and fields
    }
    last = max((name for name in texts if ("descriptors", name) in changed), default="")
    if not last:
        return
    if len(texts) > MAX_DOMAINS:
        yield last, f"An environment has at most {MAX_DOMAINS} domains."
    size = sum(len(text.encode(errors="replace")) for text in texts.values())
    if size > MAX_TEXTS:
        yield last, f"The files of all domains have {size:,} bytes. {MAX_TEXTS:,} are allowed."
    read = [read_text(text).domain for text in texts.values()]
    # Problems of one domain are found when its text is read. These are about all domains together.
    for where, problem in problems_of_all([domain for domain in read if domain is not None]):
        if not where:
            yield last, problem


def dependencies_in(text: str) -> set[str]:
    """The dependencies that rules name."""
    return {rule.dependency for rule, _ in _with_lines(read_text(text)) if rule.dependency}


def limits_of(text: str) -> set[str]:
    """The names by which decisions name the limits of rules."""
    return {rule.limit.name for rule, _ in _with_lines(read_text(text)) if rule.limit is not None}


def still_named(left: Mapping[tuple[str, str], Any], removed: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield dependency and message for each ``removed`` dependency that a rule still names."""
    for (kind, name), fields in left.items() if removed else ():
        if kind == "descriptors" and fields:
            for dependency in sorted(dependencies_in(fields["file"]).intersection(removed)):
                yield dependency, f"A rule of domain {name} still names it."


def rules_in(text: str) -> int:
    """The number of rules of a right file, on all levels."""
    return sum(1 for _ in _with_lines(read_text(text)))


def _with_lines(read: ReadFile) -> Iterator[tuple[DescriptorRule, int]]:
    """Yield each rule of a right file with its line, in their order."""

    def below(place: Place, rules: tuple[DescriptorRule, ...]) -> Iterator[tuple[DescriptorRule, int]]:
        for number, rule in enumerate(rules):
            here = (*place, number)
            yield rule, read.lines[here]
            yield from below(here, rule.then)

    yield from below((), read.domain.rules if read.domain else ())
