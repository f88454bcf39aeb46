"""Our rules decide about descriptors as envoyproxy/ratelimit does, from the same file.

CI may skip the test with the real server (CONTRIBUTING.md has the list). The recorded answers are compared
always.
With ``RATELIMIT_RECORD=1``, that test also records its answers.
"""

import json
import os
import random
from pathlib import Path

import httpx
import pytest
import redis

from tests.envoy.descriptor_cases import RECORDED, cases, our_answers
from tests.envoy.real_ratelimit import COMMIT, VARIABLE, serving, their_answers
from tests.waiting import PATIENCE_S

_RECORDED = json.loads(RECORDED.read_text()) if RECORDED.exists() else {"cases": []}


@pytest.mark.parametrize("case", _RECORDED["cases"], ids=lambda case: case["file"]["domain"])
def test_a_descriptor_gets_the_recorded_answer(case: dict[str, object]) -> None:
    assert our_answers(case) == case["answers"]


def test_the_recorded_answers_show_every_verdict() -> None:
    texts = {text for case in _RECORDED["cases"] for answer in case["answers"] for text in answer}
    assert {"ok", "ok unlimited"} < texts
    assert {"ok", "over"} < {text.split()[0] for text in texts}
    assert _RECORDED["commit"] == COMMIT


def test_a_descriptor_gets_the_answer_of_the_real_server(
    tmp_path: Path, redis_url: str, limits: redis.Redis
) -> None:
    binary = os.environ.get(VARIABLE)
    if not binary:
        pytest.skip(f"{VARIABLE} names no server of envoyproxy/ratelimit")
    record = os.environ.get("RATELIMIT_RECORD") == "1"
    count, number = (80, 1) if record else (200, random.randrange(2**32))
    made = cases(count, number)
    with (
        serving(binary, [case["file"] for case in made], tmp_path, redis_url) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, timeout=PATIENCE_S) as http,
    ):
        for case in made:
            case["answers"] = their_answers(http, case, limits)
    if record:
        lines = ",\n".join(json.dumps(case) for case in made)
        RECORDED.write_text(f'{{"commit": "{COMMIT}", "cases": [\n{lines}\n]}}\n')
    for case in made:
        assert our_answers(case) == case["answers"], f"seed {number}: {json.dumps(case)}"
