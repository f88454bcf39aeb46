"""Uploaded files: whatever they contain, the result is a list of errors by line, and nothing is executed."""

import io
import time
from typing import Any

import pytest

from controlplane.editing.plans import PlanErrors, plan_from_document, read_plan
from controlplane.editing.plans.plan import MAX_BYTES

QUOTA = "tenants:\n  a:\n    tier: pro\n    quotas:\n      r: {{limit: {}, window_s: 60}}\n"


def errors_of(text: str | bytes) -> list[tuple[int, str]]:
    with pytest.raises(PlanErrors) as refused:
        read_plan(text)
    return [(error.line, error.message) for error in refused.value.found]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "empty"),
        ("[]", 1, "Begin with a section"),
        ("just words", 1, "Begin with a section"),
        ("tenants: 5", 1, "must be a mapping"),
        ("tenants:\n  a: {tier: pro}\n---\ntenants: {}\n", 3, "must contain one document"),
        ("tenants:\n  a: &x {tier: pro}\n  b: *x\n", 2, "Anchors and aliases"),
        ("tenants:\n  b: *x\n", 2, "Anchors and aliases"),
        ("tenants:\n  a: !!python/object/apply:os.system ['true']\n", 2, "Tags are not allowed"),
        ("tenants:\n  a: {tier: !!str pro}\n", 2, "Tags are not allowed"),
        ("tenants:\n  ? [a, b]\n  : {tier: pro}\n", 2, "A key must be a word"),
        ("tenants:\n  a: {tier: pro}\n  a: {tier: free}\n", 3, "appears twice"),
        ("tenants:\n  a: {tier: pro, tier: free}\n", 2, "appears twice"),
        ("tenants: {}\ntenants: {}\n", 2, "appears twice"),
        ("tenants:\n  a: {tier: [pro]}\n", 2, "Enter one value"),
        ("tenants:\n  a: {tier: {x: y}}\n", 2, "Enter one value"),
        ("tenants:\n  a: {tier: }\n", 2, "The value is missing"),
        ("tenants:\n  a: {tier: ~}\n", 2, "The value is missing"),
        ("tenants:\n  a: {tire: pro}\n", 2, "no such field"),
        ("tennants:\n  a: {tier: pro}\n", 1, "no such section"),
        ("tenants:\n  a: {tier: pro, suspended: yes}\n", 2, "true or false"),
        ("tenants:\n  a: {tier: pro, suspended: 1}\n", 2, "true or false"),
        ("tenants:\n  a: {tier: pro, title: 12}\n", 2, "Enter text"),
        ('tenants:\n  a: {tier: pro, title: "x\\u0007"}\n', 2, "control characters"),
        ('tenants:\n  "a\\0": {tier: pro}\n', 2, "control characters"),
        (f"tenants:\n  {'k' * 201}: {{tier: pro}}\n", 2, "1 to 200 characters"),
        (f"tenants:\n  a: {{tier: pro, title: {'x' * 5000}}}\n", 2, "longer than 4,096"),
        ("tenants:\n  a: {tier: pro\n", 3, "This is not valid YAML"),
        ("tenants:\n\t a: {tier: pro}\n", 2, "This is not valid YAML"),
        ("tenants:\n  a:\n    quotas: 5\n", 3, "each limit with its name"),
        ("tenants:\n  a:\n    quotas:\n      r: {}\n", 4, "Enter its fields"),
        ("tenants:\n  a:\n    quotas:\n      'r r': {limit: 1}\n", 4, "1 to 64 letters"),
        ("tuning:\n  nope: 5\n", 2, "no such setting, only store_deadline_us, "),
        ("tenants:\n  acme: {tier: pro, nmae: Acme}\n", 2, "no such field, only tier, title, "),
        ("tuning:\n  ramp_ms: true\n", 2, "Expected `int`"),
        ("dependencies:\n  x: {kind: llm, breaker: {open_ms: 0}}\n", 2, "from 1 to"),
    ],
)
def test_an_error_has_its_line(text: str, line: int, said: str) -> None:
    found = errors_of(text)
    assert any(said in message for _, message in found), found
    assert line in [at for at, _ in found]


@pytest.mark.parametrize(
    "number",
    [
        ".nan",
        ".inf",
        "-.inf",
        "NaN",
        "1.5",
        "1e3",
        "0x10",
        "0o17",
        "1_000",
        "true",
        "false",
        "'5'",
        "-1",
        "[5]",
        "2026-01-01",
        "99999999999999999999",
        "0b1",
        "+5",
        "1:30",
        "{a: 1}",
        "007",
    ],
)
def test_only_whole_numbers_are_read_as_numbers(number: str) -> None:
    [(line, _)] = errors_of(QUOTA.format(number))
    assert line == 5


def test_a_wrong_value_that_equals_a_checked_one_is_found() -> None:
    good = "".join(f"  a{n}:\n    quotas: {{r: {{limit: 1, window_s: 60}}}}\n" for n in range(50))
    [(line, said)] = errors_of(f"tenants:\n{good}  b:\n    quotas: {{r: {{limit: true, window_s: 60}}}}\n")
    assert (line, said) == (103, "Enter a whole number from 0 to 1,000,000,000.")


def test_words_that_yaml_would_convert_stay_text() -> None:
    plan = read_plan("tenants:\n  no: {tier: on, title: 2026-01-01}\n  0123: {tier: pro, title: '1e3'}\n")
    assert plan.things["tenant", "no"] == {"tier": "on", "title": "2026-01-01"}
    assert plan.things["tenant", "0123"]["title"] == "1e3"


def test_all_errors_are_reported_at_once_up_to_a_maximum() -> None:
    found = errors_of("tenants:\n" + "".join(f"  t{n}: {{tire: x}}\n" for n in range(5_000)))
    assert [line for line, _ in found[:3]] == [2, 3, 4]
    assert len(found) == 101
    assert "Too many errors" in found[-1][1]


def test_deep_nesting_is_refused() -> None:
    [(_, said)] = errors_of("tenants:\n  a: " + "{a: " * 100_000)
    assert "Nested deeper than 8" in said
    [(_, said)] = errors_of("tenants:\n  a: " + "[" * 100_000)
    assert "words only" in said


class Endless(io.RawIOBase):
    """A stream without end, which must not be read to its end."""

    def __init__(self, start: bytes, part: bytes) -> None:
        self.start, self.part, self.given = start, part, 0

    def read(self, size: int = -1) -> bytes:
        part, self.start = self.start or self.part, b""
        self.given += len(part)
        return part


@pytest.mark.parametrize(
    ("start", "part"),
    [
        (b"tenants:\n", b"# nothing here\n" * 5_000),
        (b"tenant,tier\n", b"x" * 65_536),
        (b"tenant,tier\n", b"\n" * 65_536),
    ],
)
def test_an_endless_file_is_refused(start: bytes, part: bytes) -> None:
    stream = Endless(start, part)
    with pytest.raises(PlanErrors):
        read_plan(stream)  # type: ignore[arg-type]
    assert stream.given <= MAX_BYTES + 2 * len(part)


def test_too_many_rows_are_refused() -> None:
    rows = "".join(f"t{n},free\n" for n in range(200_002))
    assert "at most 200,000" in errors_of("tenant,tier\n" + rows)[0][1]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("tenant,nope\na,b\n", 1, "The columns are"),
        ("tenant,tier,tier\na,b,c\n", 1, "The columns are"),
        ("tenant,tier\na\n", 2, "the header has 2"),
        ("tenant,tier,limit\na,pro,5\n", 2, "Enter the quota"),
        ("tenant,quota,limit,window_s\na,r,1.5,60\n", 2, "whole number"),
        ("tenant,quota,limit,window_s\na,r,NaN,60\n", 2, "whole number"),
        ("tenant,quota,limit,window_s\na,r,5,60\na,r,6,60\n", 3, "appears twice"),
        ("tenant,tier\na,pro\na,free\n", 3, "has another value"),
        ("tenant,tier,suspended\na,pro,TRUE\n", 2, "true or false"),
        ('tenant,tier\n"a,pro\n', 2, "This is not valid CSV"),
        (b"tenant,tier\n\xff\xfe,pro\n", 2, "not UTF-8"),
        (b"tenant,tier\na\x00b,pro\n", 2, ""),
        ("tenant,tier\n,pro\n", 2, "1 to 200 characters"),
    ],
)
def test_csv_is_as_strict(text: str | bytes, line: int, said: str) -> None:
    found = errors_of(text)
    assert any(said in message for _, message in found), found
    assert line in [at for at, _ in found]


@pytest.mark.parametrize("cell", ["user ip", "user\nip", "user\r\nip\r\n", " user \n ip "])
def test_words_in_a_cell_are_separated_by_any_space(cell: str) -> None:
    plan = read_plan(f'tenant,quota,limit,window_s,per\na,r,5,60,"{cell}"\n')
    assert plan.things["tenant", "a"]["quotas.r.per"] == ["user", "ip"]


_KEYS = 60_000


def _mapping(value: str, flow: bool = False) -> str:
    if flow:
        return "{" + ", ".join(f"k{n}: {value}" for n in range(_KEYS)) + "}"
    return "".join(f"\n      k{n}: {value}" for n in range(_KEYS))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("".join(f"k{n}: 1\n" for n in range(_KEYS)), id="sections"),
        pytest.param("tenants:\n" + "  a: {tire: x}\n" * _KEYS, id="the same tenant"),
        pytest.param("tenants:\n  a:" + _mapping("1"), id="fields of a tenant"),
        pytest.param("tenants:\n  a: " + _mapping("1", flow=True), id="in one line"),
        pytest.param("tenants:\n  a:\n    quotas:" + _mapping("{limit: 1, window_s: 60}"), id="quotas"),
        pytest.param("tenants:\n  a:\n    quotas:\n     r:" + _mapping("1"), id="fields of a quota"),
        pytest.param("dependencies:\n  a:\n    protection:" + _mapping("1"), id="protection"),
        pytest.param("dependencies:\n  a:\n    breaker:" + _mapping("1"), id="breaker"),
        pytest.param("tuning:" + _mapping("1"), id="tuning"),
        pytest.param("protection:" + _mapping("{a: 1}"), id="protection of pods"),
        pytest.param("subject_limits:" + _mapping("1"), id="limits of callers"),
        pytest.param("nope:" + _mapping("1"), id="an unknown section"),
        pytest.param(
            "tenants:\n  a:\n    quotas:\n      r: {endpoints: [" + "x, " * _KEYS + "]}", id="a list"
        ),
        pytest.param("x: &a {}\n" + "".join(f"k{n}: *a\n" for n in range(_KEYS)), id="aliases"),
        pytest.param("? " * _KEYS, id="keys of keys"),
        pytest.param("tenants: {" + "a, " * _KEYS, id="keys without values"),
    ],
)
def test_sixty_thousand_keys_are_refused_within_a_second_of_cpu(text: str) -> None:
    began = time.process_time()
    assert errors_of(text)
    assert time.process_time() - began < 1


def test_a_document_is_checked_like_a_file() -> None:
    bad: Any = {"tenants": {"a": {"tier": "pro", "quotas": {"r": {"limit": float("nan"), "window_s": True}}}}}
    with pytest.raises(PlanErrors) as refused:
        plan_from_document(bad)
    assert {error.where for error in refused.value.found} == {
        "tenants.a.quotas.r.limit",
        "tenants.a.quotas.r.window_s",
    }


def test_a_hundred_thousand_rows_are_read_in_seconds() -> None:
    row = "  customer-{}:\n    tier: free\n    quotas:\n      r: {{limit: 100, window_s: 60, burst: 20}}\n"
    text = "tenants:\n" + "".join(row.format(number) for number in range(100_000))
    began = time.process_time()
    assert len(read_plan(text)) == 100_000
    assert time.process_time() - began < 15
