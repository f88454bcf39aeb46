"""A file of envoyproxy/ratelimit, from the command that imports it to the rules of a pod."""

import asyncio
from pathlib import Path

import pytest

import fuseboard
from controlplane.policies.models import Environment
from fuseboard.cli import main
from fuseboard.cli.ctl.exit_codes import Exit
from fuseboard.contract.descriptors import Match, Verdict
from tests.controlplane.calling import token_of
from tests.waiting import eventually
from tools.demo.processes import Processes
from tools.demo.seed import ENVIRONMENT, Seeded

FILE = "domain: edge\ndescriptors:\n  - key: path\n    rate_limit: {unit: hour, requests_per_unit: 5}\n"


def test_a_file_that_a_command_imports_decides_in_a_pod_at_its_revision(
    control_plane: Processes,
    seeded: Seeded,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FUSEBOARD_API_URL", control_plane.by_name["web"].url)
    monkeypatch.setenv("FUSEBOARD_API_TOKEN", token_of("admin"))
    file = tmp_path / "limits.yaml"
    file.write_text(FILE)
    agent = fuseboard.Agent(
        settings=fuseboard.AgentSettings(
            redis_url=redis_url,
            url=control_plane.by_name["gateway"].url,
            token=seeded.agent_token,
            service="envoy",
            server="envoy-1",
            state_dir=tmp_path / "state",
        )
    )
    before = Environment.objects.get(pk=ENVIRONMENT).revision
    with asyncio.Runner() as runner:
        runner.run(agent.start())
        try:
            command = ["ctl", "envoy", "import", str(file), "--apply", "--reason", "The limits of the edge"]
            # In a thread, because the pod's loop must keep running for its heartbeats.
            assert runner.run(asyncio.to_thread(main, command)) == Exit.DONE
            revision, match = runner.run(matched(agent, before))
        finally:
            runner.run(agent.stop())
    assert revision == before + 1
    assert (match.verdict, match.counted) == (Verdict.LIMIT, ("path", "/reports"))


async def matched(agent: fuseboard.Agent, before: int) -> tuple[int, Match]:
    """The first revision after ``before`` that the pod has, and what a descriptor meets there."""

    async def now() -> tuple[int, Match]:
        snapshot = agent.configuration.snapshot
        [match] = snapshot.descriptor_rules.match("edge", [[("path", "/reports")]])
        return snapshot.head.revision, match

    return await eventually(now, accept=lambda found: found[0] > before)
