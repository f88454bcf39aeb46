"""The descriptors that this process answered, by rule, until a gateway has counted them.

The loop writes and the sync thread reads, so a lock is around the table. Memory is bounded, whatever Envoy
sends.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from time import monotonic

import msgspec

from fuseboard.contract.descriptor_tallies import (
    MAX_DOMAIN,
    MAX_EXAMPLE,
    MAX_EXAMPLES,
    MAX_KEYS,
    MAX_TALLIED_RULES,
    MAX_UNMATCHED,
    DescriptorTally,
    RuleTally,
    UnmatchedTally,
    joined,
    rule_of,
    shortened,
)
from fuseboard.contract.descriptors import DescriptorRule, Entry, Match, Verdict
from fuseboard.reporting.numbered_parts import NumberedParts, take_rows
from fuseboard.reporting.refusal_samples import template_of

#: Between two heartbeats: domains, rules of all domains, and lists of keys without a rule in one domain.
MAX_DOMAINS, MAX_RULES, MAX_LISTS = 20, 1_000, 50
#: Bytes of rules, and as many of lists of keys, in one heartbeat.
MAX_BYTES = 4_000
#: The time after which counts that no gateway has taken are forgotten: pages show 15 minutes.
KEPT_S = 900.0
#: Descriptors with the same keys among which examples are looked for.
_TRIED = 20
#: Characters of a value that are read for an example.
_READ = 200
_MAX_COUNT = 2**31 - 1
# Members of enumerations are slow to look up in Python 3.11.
_UNMATCHED, _REPLACED = Verdict.UNMATCHED, Verdict.REPLACED

#: Digits in a row that identify someone also between other signs, such as those of a telephone number.
_DIGITS = re.compile(r"\d{4,}")
_encode = msgspec.json.encode


class _Unmatched:
    __slots__ = ("asked", "examples")

    def __init__(self) -> None:
        self.asked = 0
        self.examples: list[str] = []


class _Table:
    """Counts since the last part."""

    def __init__(self) -> None:
        self.domains: set[str] = set()
        #: Domain and rule -> asked, refused and shadow.
        self.rules: dict[tuple[str, str], list[int]] = {}
        #: Domain -> keys -> descriptors.
        self.unmatched: dict[str, dict[str, _Unmatched]] = {}
        self.left_out = 0

    def has_room(self, domain: str) -> bool:
        if domain not in self.domains:
            if len(self.domains) >= MAX_DOMAINS:
                return False
            self.domains.add(domain)
        return True

    def note_rule(self, domain: str, rule: str, refused: bool, shadow: bool) -> None:
        counts = self.rules.get((domain, rule))
        if counts is None:
            if len(self.rules) >= MAX_RULES:
                self.left_out += 1
                return
            counts = self.rules[domain, rule] = [0, 0, 0]
        counts[0] += 1
        counts[1] += refused
        counts[2] += shadow

    def note_unmatched(self, domain: str, descriptor: Sequence[Entry]) -> None:
        lists = self.unmatched.setdefault(domain, {})
        keys = shortened(joined([key for key, _ in descriptor]), MAX_KEYS)
        found = lists.get(keys)
        if found is None:
            if len(lists) >= MAX_LISTS:
                self.left_out += 1
                return
            found = lists[keys] = _Unmatched()
        found.asked += 1
        if len(found.examples) < MAX_EXAMPLES and found.asked <= _TRIED:
            example = example_of(value for _, value in descriptor)
            if example not in found.examples:
                found.examples.append(example)


class DescriptorTallies:
    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._lock = Lock()
        self._table = _Table()
        #: The ids of the rules of all entries -> the name of the last rule, and the rules.
        self._names: dict[tuple[int, ...], tuple[str, tuple[DescriptorRule, ...]]] = {}
        # The others are for the sync thread only.
        self._rules: deque[RuleTally] = deque()
        self._unmatched: deque[UnmatchedTally] = deque()
        self._left_out = 0
        #: One at most.
        self._parts: NumberedParts[DescriptorTally] = NumberedParts()
        self._answered = now()

    def note(
        self,
        domain: str,
        descriptors: Sequence[Sequence[Entry]],
        matches: Sequence[Match],
        refused: Sequence[bool],
        shadow: Sequence[bool],
    ) -> None:
        """Count one request of Envoy, with one match, and one answer, for each descriptor.

        ``shadow``: a rule in shadow mode would have refused the descriptor. A rule that another descriptor
        replaces counts nothing.
        """
        domain = shortened(domain, MAX_DOMAIN)
        with self._lock:
            table = self._table
            if not domain or not table.has_room(domain):
                table.left_out += len(matches)
                return
            for descriptor, match, over, would in zip(descriptors, matches, refused, shadow, strict=True):
                if match.verdict is _UNMATCHED:
                    table.note_unmatched(domain, descriptor)
                elif match.verdict is not _REPLACED:
                    table.note_rule(domain, self._name_of(match.path), over, would)

    def _name_of(self, path: tuple[DescriptorRule, ...]) -> str:
        # A rule has no short hash. As long as it is kept here, no other object has its id.
        key = tuple(map(id, path))
        found = self._names.get(key)
        if found is None:
            if len(self._names) >= MAX_RULES:
                self._names.clear()
            found = self._names[key] = (rule_of(path), path)
        return found[0]

    # Called by the sync thread

    def next(self) -> DescriptorTally | None:
        """The part for the next heartbeat: the last one again, until ``taken`` is called."""
        if self._now() - self._answered > KEPT_S:
            self._forget()
        if not self._parts:
            if not self._rules and not self._unmatched:
                self._look()
            rules = take_rows(self._rules, MAX_TALLIED_RULES, MAX_BYTES, _size)
            unmatched = take_rows(self._unmatched, MAX_UNMATCHED, MAX_BYTES, _size)
            left_out, self._left_out = min(self._left_out, _MAX_COUNT), 0
            if not rules and not unmatched and not left_out:
                return None
            self._parts.add(
                lambda number: DescriptorTally(
                    number=number, rules=rules, unmatched=unmatched, left_out=left_out
                )
            )
        return next(iter(self._parts))

    def taken(self) -> None:
        """A gateway answered the heartbeat."""
        self._answered = self._now()
        self._parts.taken()

    def _look(self) -> None:
        with self._lock:
            table, self._table = self._table, _Table()
        self._rules.extend(
            RuleTally(domain, rule, *(min(count, _MAX_COUNT) for count in counts))
            for (domain, rule), counts in table.rules.items()
        )
        self._unmatched.extend(
            UnmatchedTally(domain, keys, min(one.asked, _MAX_COUNT), tuple(one.examples))
            for domain, lists in table.unmatched.items()
            for keys, one in lists.items()
        )
        self._left_out = table.left_out

    def _forget(self) -> None:
        self._answered = self._now()
        self._rules.clear()
        self._unmatched.clear()
        self._parts.taken()
        self._look()
        self._rules.clear()
        self._unmatched.clear()
        self._left_out = 0


def _size(row: RuleTally | UnmatchedTally) -> int:
    return len(_encode(row)) + 1


def example_of(values: Iterable[str]) -> str:
    """The values of a descriptor, shortened, without what identifies a person or a thing."""
    return joined(_without_ids(value[:_READ]) for value in values)[:MAX_EXAMPLE]


def _without_ids(value: str) -> str:
    return _DIGITS.sub("{id}", " ".join(template_of(word) for word in value.split(" ")))
