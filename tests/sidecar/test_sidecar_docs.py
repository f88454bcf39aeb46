"""The page docs/sidecar.md: its samples run, and its tables are those of the contract."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuseboard.contract import sidecar as contract
from fuseboard.contract.sidecar import CallError
from fuseboard.reporting.token import TokenSource
from fuseboard.sidecar.answers import _TITLES
from fuseboard.sidecar.app import Options
from tests.agents.servers import POLICY
from tests.sidecar.conftest import Beside
from tests.waiting import eventually

PAGE = (Path(__file__).resolve().parents[2] / "docs/sidecar.md").read_text()
ROWS = dict(re.findall(r"^\| `(/v1/[a-z-]+)` \| (.*) \|$", PAGE, re.MULTILINE))


def samples() -> tuple[list[tuple[str, str]], list[Any]]:
    """Path and body of each curl, and the answers."""
    asked = re.findall(r"curl http://127\.0\.0\.1:7480(\S+) .*?-d '(.*?)'", PAGE, re.DOTALL)
    answered = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    return asked, answered


async def test_the_samples_of_the_page_run(beside: Beside) -> None:
    ((calls, call), (reports, report), (explains, explained)), (allowed, accepted, refused, checked) = (
        samples()
    )
    options = Options(listen=("127.0.0.1", 0), token=TokenSource("secret", None))
    async with beside(POLICY, options) as client:
        client.http.headers["authorization"] = "Bearer secret"
        assert (await client.post(explains, json.loads(explained))).keys() == {"text", "explanation"}
        found = await client.post("/v1/check", {"tenant": "acme"})
        assert found | {"revision": checked["revision"]} == checked
        answer = await client.post(calls, json.loads(call))
        assert answer.keys() == allowed.keys()
        assert answer["timeout_ms"] == allowed["timeout_ms"]
        assert answer["expires_ms"] == allowed["expires_ms"]
        body = report.replace(allowed["permit"], answer["permit"])
        assert await client.post(reports, json.loads(body)) == accepted

        async def again() -> Any:
            return await client.post(calls, json.loads(call))

        no = await eventually(again, accept=lambda answer: not answer["allowed"])
        assert no.keys() == refused.keys()
        assert {"reason", "rule", "status"} <= no.keys() & refused.keys()
        assert (no["reason"], no["rule"], no["status"]) == ("cooling_down", "payments", 503)
        assert refused["headers"].keys() <= no["headers"].keys()
        assert refused["problem"].items() <= no["problem"].items()


def test_the_page_has_every_path() -> None:
    assert ROWS.keys() == contract.OPERATIONS.keys() | contract.READS.keys()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (contract.CALLS_PATH, contract.AskCall),
        (contract.REPORTS_PATH, contract.Report),
        (contract.REQUESTS_PATH, contract.AskRequest),
        (contract.FINISH_PATH, contract.Finish),
        (contract.GIVE_BACK_PATH, contract.GiveBack),
        (contract.CHECK_PATH, contract.AskCheck),
        (contract.EXPLAIN_PATH, contract.AskExplanation),
        (contract.DEPENDENCIES_PATH, contract.DependencyState),
    ],
)
def test_the_page_has_every_member(path: str, kind: type[msgspec.Struct]) -> None:
    named = set(re.findall(r"`([a-z_]+)\??`", ROWS[path]))
    own = {field.name for field in msgspec.structs.fields(kind)}
    assert own <= named
    assert named <= own | {field.name for field in msgspec.structs.fields(contract.AskedSubject)} | {"null"}


def test_the_page_has_every_error_and_every_status() -> None:
    line = next(line for line in PAGE.splitlines() if line.startswith("* `error` is"))
    assert set(re.findall(r"`([a-z]+)`", line)) - {"error", "code"} >= set(CallError)
    table = PAGE.partition("| status | when |")[2].partition("## Paths")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    assert {int(number) for row in rows for number in re.findall(r"[0-9]{3}", row)} == {200, *_TITLES}
