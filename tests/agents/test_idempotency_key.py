"""The key of an action: the same in every process and every release, and different for every other action."""

import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from itertools import combinations
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard import Misconfigured, idempotency_key

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)


class Size(Enum):
    SMALL = "s"


class Number(IntEnum):
    ONE = 1


def type_name(value: object) -> str:
    """The id of a parameter: sets and addresses are written differently in each process."""
    return type(value).__name__


def key(**params: Any) -> str:
    return idempotency_key("order", "charge", **params)


def test_a_key_never_changes_between_releases() -> None:
    """A key that is stored today must be found by the release of tomorrow. Do not edit these."""
    assert key() == "5a0ca8195c7854d827a9fddbad3370f2"
    everything = key(
        none=None,
        yes=True,
        text="ü",
        number=-4711,
        share=1.5,
        amount=Decimal("12.50"),
        raw=b"\x00",
        id=UUID(int=7),
        at=NOON,
        day=date(2026, 11, 28),
        hour=time(12),
        several=[1, "1", (2,)],
        nested={"b": 1, "a": {2}},
    )
    assert everything == "fd93fe92abf4777010320cf1ac02dc3b"


@pytest.mark.parametrize(
    "values",
    [
        (1, "1", 1.0, True, Decimal(1), b"1", [1], {"1": 1}, {1}, None, ""),
        (0, False, None, "", b"", [], {}, frozenset(), 0.0),
        ("a:b", "a", "b", ["a", "b"], ["a:b"], ["a", ["b"]], [["a", "b"]], [["a"], "b"], {"a": "b"}),
        ({"a": {"b": 1}}, {"a": {}, "b": 1}, {"a": 1, "b": {}}),
        ({1: "x"}, {"1": "x"}, {True: "x"}),
        ([1, 2], [2, 1], {1, 2}),
        ("s1:a", "1:a", "s"),
        ("2026-11-28", date(2026, 11, 28), datetime(2026, 11, 28, tzinfo=UTC)),
        ("00000000-0000-0000-0000-000000000007", UUID(int=7), UUID(int=7).bytes),
        (Decimal("1E+2"), Decimal("1E-2"), Decimal(-100), Decimal("0.1")),
        (Decimal("1." + "0" * 40 + "1"), Decimal("1." + "0" * 40 + "2"), Decimal(1)),
        (10**5000, 10**5000 + 1, -(10**5000)),
        ("é", "e\u0301"),
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_different_values_have_different_keys(values: tuple[Any, ...]) -> None:
    for one, other in combinations(values, 2):
        assert key(value=one) != key(value=other), (one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"x", "y", "z"}, {"z", "y", "x"}),
        ({1}, frozenset({1})),
        ([1, 2], (1, 2)),
        (b"x", bytearray(b"x")),
        (0.0, -0.0),
        (Decimal("1.5"), Decimal("1.500")),
        (Decimal("100"), Decimal("1E+2")),
        (Decimal("0.00"), Decimal("-0")),
        (Size.SMALL, "s"),
        (Number.ONE, 1),
        (NOON, NOON.astimezone(timezone(timedelta(hours=5)))),
    ],
    ids=type_name,
)
def test_two_spellings_of_one_value_have_one_key(one: Any, other: Any) -> None:
    assert key(value=one) == key(value=other)


def test_names_entity_and_action_do_not_run_into_each_other() -> None:
    assert len({idempotency_key("a", "bc"), idempotency_key("ab", "c"), idempotency_key("abc", "x")}) == 3
    assert key(a=1, b=2) == key(b=2, a=1)
    assert key(ab=1) != key(a="b1")
    assert idempotency_key("order", "charge", entity="x", action="y") != key()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "equals nothing"),
        (float("inf"), "equals nothing"),
        (Decimal("NaN"), "equals nothing"),
        (Decimal("-Infinity"), "equals nothing"),
        (datetime(2026, 11, 28), "datetime without a zone"),  # noqa: DTZ001 - the fault
        (object(), "of type object"),
        (1j, "of type complex"),
        (len, "of type builtin"),
        (iter([1]), "of type list_iterator"),
        ("\ud800", "surrogate"),
        ([{"x": float("nan")}], r"params\.value\[0\]\.x"),
    ],
    ids=type_name,
)
def test_a_value_without_one_meaning_is_refused_by_its_name(value: Any, why: str) -> None:
    with pytest.raises(Misconfigured, match=why):
        key(value=value)


def test_a_value_that_contains_itself_is_refused() -> None:
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(Misconfigured, match="nested deeper"):
        key(value=itself)


@pytest.mark.parametrize(("entity", "action"), [("", "x"), ("x", ""), (None, "x"), ("x", 1)])
def test_entity_and_action_are_text(entity: Any, action: Any) -> None:
    with pytest.raises(Misconfigured, match="text that is not empty"):
        idempotency_key(entity, action)


def test_another_process_makes_the_same_key() -> None:
    """Python orders sets of text differently in each process."""
    code = "import fuseboard; print(fuseboard.idempotency_key('a', 'b', c={'x', 'y', 'z', 'w'}))"
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(keys) == 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES, VALUES)
def test_keys_are_equal_only_for_equal_values(one: Any, other: Any) -> None:
    # repr, because 1 == True for Python.
    equal = _ordered(one) == _ordered(other)
    assert (key(value=one) == key(value=other)) == equal


def _ordered(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict{sorted((name, _ordered(one)) for name, one in value.items())}"
    return f"[{','.join(map(_ordered, value))}]" if isinstance(value, list) else repr(value)
