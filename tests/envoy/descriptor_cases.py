"""Files and requests for envoyproxy/ratelimit and for our rules, and what each answers.

Keys and values contain no ``_``: envoyproxy/ratelimit joins keys and values with it, and so confuses some.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuseboard.contract.descriptor_file import read_file
from fuseboard.contract.descriptors import DescriptorRules, Verdict

RECORDED = Path(__file__).with_name("recorded_answers.json")
UNITS = ("second", "minute", "hour", "day")
#: Windows that last longer than the requests of a case.
LONG = ("hour", "day")
MOST = 2**32 - 1

KEYS = ["a", "b"]
VALUES = ["", "x", "xy", "y", "*", "x*", "*y", "x*y", "x*z*", "[x]*"]
SENT = ["", "x", "xy", "xzy", "xzzy", "xyzy", "y", "q", "x*", "[x]y", "x\ny"]
NAMES = ["one", "two", "three"]


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    """The mapping ``rate_limit``."""
    limit: dict[str, Any] = draw(
        st.one_of(
            st.fixed_dictionaries({"unit": st.sampled_from(UNITS), "requests_per_unit": st.integers(0, 6)}),
            st.just({"unlimited": True}),
        )
    )
    name = draw(st.sampled_from(["", *NAMES]))
    if name:
        limit["name"] = name
    replaced = draw(st.lists(st.sampled_from([one for one in NAMES if one != name]), unique=True, max_size=2))
    if replaced:
        limit["replaces"] = [{"name": one} for one in replaced]
    return limit


def rules(levels: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(
        rule(levels), min_size=1, max_size=5, unique_by=lambda rule: (rule["key"], rule.get("value", ""))
    )


@st.composite
def rule(draw: st.DrawFn, levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {"key": draw(st.sampled_from(KEYS))}
    value = draw(st.sampled_from(VALUES))
    if value:
        made["value"] = value
    if draw(st.integers(0, 3)):
        made["rate_limit"] = draw(limits())
    for word, allowed in (("shadow_mode", True), ("share_threshold", "*" in value)):
        if allowed and draw(st.integers(0, 2)) == 0:
            made[word] = True
    if levels > 1 and draw(st.booleans()):
        made["descriptors"] = draw(rules(levels - 1))
    return made


@st.composite
def wild_rule(draw: st.DrawFn) -> dict[str, Any]:
    """A rule whose values usually share a counter, alone or with one rule below it."""
    made: dict[str, Any] = {"key": "a", "value": draw(st.sampled_from([one for one in VALUES if "*" in one]))}
    if draw(st.integers(0, 3)):
        made["share_threshold"] = True
    limit = {"unit": draw(st.sampled_from(LONG)), "requests_per_unit": draw(st.integers(3, 20))}
    if draw(st.integers(0, 2)):
        made["rate_limit"] = limit
    else:
        made["descriptors"] = [{"key": "b", "rate_limit": limit}]
    return made


WILD_RULES = st.lists(wild_rule(), min_size=1, max_size=4, unique_by=lambda rule: rule["value"])
DESCRIPTORS = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(SENT)), min_size=1, max_size=3)
#: Entries in the order of the keys, which rules often have.
USUAL = st.tuples(st.sampled_from(SENT), st.none() | st.sampled_from(SENT)).map(
    lambda values: [(key, value) for key, value in zip(KEYS, values, strict=True) if value is not None]
)
REQUESTS = st.fixed_dictionaries(
    {"hits": st.integers(1, 3), "descriptors": st.lists(DESCRIPTORS | USUAL, min_size=1, max_size=3)}
)


def cases(count: int, number: int) -> list[dict[str, Any]]:
    """Several cases, decided by the number of a seed. A case is a file, and its requests in their order."""
    found: list[dict[str, Any]] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(rules(3) | WILD_RULES, st.lists(REQUESTS, min_size=4, max_size=12))
    def make(rules: list[dict[str, Any]], requests: list[dict[str, Any]]) -> None:
        found.append({"file": {"domain": f"case{len(found)}", "descriptors": rules}, "requests": requests})

    make()
    plain: list[dict[str, Any]] = json.loads(json.dumps(found))
    return plain


def our_answers(case: dict[str, Any]) -> list[Any]:
    """For each request: what ``answer_text`` returns for each descriptor."""
    file = read_file(yaml.safe_dump(case["file"], sort_keys=False))
    assert file.domain is not None, file.problems
    rules, spent, answers = DescriptorRules([file.domain]), Counter[tuple[str, ...]](), []
    for request in case["requests"]:
        matches = rules.match(file.domain.domain, [list(map(tuple, one)) for one in request["descriptors"]])
        texts = []
        for match in matches:
            if match.verdict is Verdict.UNLIMITED:
                texts.append(answer_text(over=False, left=MOST))
                continue
            if match.verdict is not Verdict.LIMIT:
                texts.append(answer_text(over=False, left=0))
                continue
            assert match.rule is not None
            limit = match.rule.limit
            assert limit is not None
            unit = (
                limit.period.value if limit.period else {1_000: "second", 60_000: "minute"}[limit.window_ms]
            )
            spent[match.counted] += request["hits"]
            left = limit.limit - spent[match.counted]
            refused = left < 0 and not limit.shadow
            texts.append(
                answer_text(over=refused, left=left, unit=unit, limit=limit.limit, name=match.rule.name)
            )
        answers.append(texts)
    return answers


def answer_text(*, over: bool, left: int, unit: str = "", limit: int = 0, name: str = "") -> str:
    """``over 0 left of 5 per hour one``. Counters of short windows may begin again, so they are left out."""
    if not unit:
        return "ok unlimited" if left == MOST else "ok"
    counted = f"{'over' if over else 'ok'} {max(0, left)} left of " if unit in LONG else ""
    return f"{counted}{limit} per {unit} {name}".strip()


def their_answer(request: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    """The same texts from an answer to ``/json``."""
    texts, codes = [], []
    for status in answer["statuses"]:
        current = status.get("currentLimit")
        codes.append(status["code"])
        texts.append(
            answer_text(
                over=status["code"] == "OVER_LIMIT",
                left=status.get("limitRemaining", 0),
                unit=current.get("unit", "").lower() if current else "",
                limit=current.get("requestsPerUnit", 0) if current else 0,
                name=current.get("name", "") if current else "",
            )
        )
    assert (answer["overallCode"] == "OVER_LIMIT") == ("OVER_LIMIT" in codes)
    assert len(texts) == len(request["descriptors"])
    return texts
