"""A question as ``admit.lua`` reads it: one flat msgpack array, joined from pieces that rarely change.

Msgpack can be joined from pieces. So whatever does not depend on the moment (rules, costs, the
breaker's figures) is encoded once and kept. Each rule has a number for the lifetime of this process; a
question lists the rules its groups refer to.
"""

from functools import lru_cache
from itertools import count

import msgspec

msgpack_encode = msgspec.msgpack.Encoder().encode

_SMALL = tuple(msgpack_encode(number) for number in range(1001))
_numbers = count(1)


#: An array whose number of elements follows in 4 bytes.
_ARRAY = b"\xdd"
#: A rule in a question: its number, and the eight numbers of ``rule_of``.
RULE_ELEMENTS = 9


class Piece:
    """Part of an array: the number of its elements, and their encoded text."""

    __slots__ = ("elements", "text")

    def __init__(self, *elements: int | str) -> None:
        self.elements = len(elements)
        self.text = b"".join(map(msgpack_encode, elements))


#: Says that the domain has no breaker.
UNGUARDED = Piece(0)


@lru_cache(maxsize=4096)
def numbered_rule(rule: tuple[int, ...]) -> tuple[int, bytes]:
    """The number that groups use for this rule, and number and rule, encoded."""
    number = next(_numbers)
    return number, Piece(number, *rule).text


@lru_cache(maxsize=4096)
def _table(rules: tuple[tuple[int, bytes], ...]) -> dict[int, bytes]:
    """One shared table for all demands with these rules."""
    return dict(rules)


class GroupText:
    """The text of one demand in a question, without the number of calls."""

    __slots__ = ("elements", "head", "part", "rules", "rules_text", "tail", "until_us")

    def __init__(
        self,
        *,
        priority: int,
        costs: tuple[int, ...],
        places: tuple[int, ...],
        rules: tuple[tuple[int, ...], ...],
        part: float,
        until_us: int,
    ) -> None:
        numbered = [numbered_rule(rule) for rule in rules]
        self.rules = _table(tuple(numbered))
        #: Used when it is the only group of its question.
        self.rules_text = msgpack_encode(len(self.rules)) + b"".join(self.rules.values())
        self.head = msgpack_encode(priority)
        words = [len(rules)]
        for place, (number, _), cost in zip(places, numbered, costs, strict=True):
            words += (place, number, cost)
        self.tail = Piece(*words).text
        self.elements = 2 + len(words)
        #: Valid for this part of the limits, and before this store time in us.
        self.part = part
        self.until_us = until_us


def join_question(not_after: int, token: str, guard: Piece, groups: list[tuple[GroupText, int]]) -> bytes:
    """The whole question. ``groups`` come with the number of calls each wants."""
    elements = 3 + guard.elements
    if len(groups) == 1:
        text, calls = groups[0]
        elements += RULE_ELEMENTS * len(text.rules) + text.elements
        body: tuple[bytes, ...] = (text.rules_text, text.head, encoded(calls), text.tail)
    else:
        rules: dict[int, bytes] = {}
        last = None
        pieces: list[bytes] = []
        for text, calls in groups:
            if text.rules is not last:
                last = text.rules
                rules |= last
            elements += text.elements
            pieces += (text.head, encoded(calls), text.tail)
        elements += RULE_ELEMENTS * len(rules)
        body = (msgpack_encode(len(rules)), *rules.values(), *pieces)
    return join_array(elements, msgpack_encode(not_after), msgpack_encode(token), guard.text, *body)


def join_array(elements: int, *parts: bytes) -> bytes:
    """An array in msgpack from its encoded parts, which have this number of elements together."""
    return b"".join((_ARRAY, elements.to_bytes(4, "big"), *parts))


def encoded(number: int) -> bytes:
    return _SMALL[number] if number <= 1000 else msgpack_encode(number)
