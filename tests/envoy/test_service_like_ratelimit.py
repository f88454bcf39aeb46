"""The rate limit service gives the recorded answers of envoyproxy/ratelimit, until a request is refused.

Then they differ on purpose: there, a refused request is counted, and here it spends nothing.
"""

import json
from collections.abc import Iterator
from time import time
from typing import Any

import pytest
import yaml

from fuseboard.contract.descriptor_file import read_file
from fuseboard.contract.descriptors import MAX_DOMAINS, DescriptorRules, Match, Verdict
from fuseboard.envoy import rls_pb2 as pb
from tests.envoy.conftest import Answering, Envoy, policy_of
from tests.envoy.descriptor_cases import LONG, MOST, RECORDED
from tests.envoy.messages import OK, OVER, codes, descriptor, request

CASES: list[dict[str, Any]] = json.loads(RECORDED.read_text())["cases"]
PARTS = [CASES[start : start + MAX_DOMAINS] for start in range(0, len(CASES), MAX_DOMAINS)]


@pytest.mark.parametrize("part", range(len(PARTS)))
async def test_requests_get_the_recorded_answers(answering: Answering, part: int) -> None:
    files = [yaml.safe_dump(case["file"], sort_keys=False) for case in PARTS[part]]
    compared = 0
    async with answering(policy_of(*files)) as envoy:
        for case, file in zip(PARTS[part], files, strict=True):
            compared += await compare(envoy, case, file)
    assert compared > len(PARTS[part])


async def compare(envoy: Envoy, case: dict[str, Any], file: str) -> int:
    """How many requests were compared."""
    domain = read_file(file).domain
    assert domain is not None
    rules, hour = DescriptorRules([domain]), time() // 3600
    for number, (asked, theirs) in enumerate(zip(case["requests"], case["answers"], strict=True)):
        entries = [list(map(tuple, one)) for one in asked["descriptors"]]
        body = request(*[descriptor(*one) for one in entries], domain=domain.domain, hits=asked["hits"])
        answer = await envoy.ask(body)
        if time() // 3600 != hour:
            return number  # the counters have begun again
        is_over = any(text.startswith("over") for text in theirs)
        if answer.overall_code == OVER or is_over:
            refused = [status for status in answer.statuses if status.code == OVER]
            assert is_over or any(status.current_limit.unit < pb.HOUR for status in refused)
            assert codes(answer)[0] == OVER
            assert refused
            return number + 1
        matches = rules.match(domain.domain, entries)
        assert list(map(_ours, matches, answer.statuses)) == list(_last(matches, theirs)), (case, number)
    return len(case["requests"])


def _ours(match: Match, status: Any) -> str:
    """As ``answer_text`` writes it."""
    assert status.code == OK
    if match.verdict is not Verdict.LIMIT:
        assert not status.HasField("current_limit")
        return "ok unlimited" if status.limit_remaining == MOST else "ok"
    current = status.current_limit
    unit = pb.Unit.Name(current.unit).lower()
    counted = f"ok {status.limit_remaining} left of " if unit in LONG and not _is_shadow(match) else ""
    return f"{counted}{current.requests_per_unit} per {unit} {current.name}".strip()


def _last(matches: tuple[Match, ...], texts: list[str]) -> Iterator[str]:
    """Their answers. Descriptors with one counter get that of the last one, which is charged last there."""
    last = {match.counted: text for match, text in zip(matches, texts, strict=True)}
    for match, text in zip(matches, texts, strict=True):
        if match.verdict is not Verdict.LIMIT:
            yield text
        elif _is_shadow(match):
            # A shadow limit without room is not counted here.
            yield last[match.counted].partition(" left of ")[2] or text
        else:
            yield last[match.counted]


def _is_shadow(match: Match) -> bool:
    return match.rule is not None and match.rule.limit is not None and match.rule.limit.shadow
