"""The commands ``fuseboard envoy check`` and ``fuseboard envoy try``, and the samples of docs/envoy.md."""

import json
import logging
import os
import re
import shlex
import tracemalloc
from pathlib import Path

import msgspec
import pytest
import redis

from fuseboard import AgentSettings, Subject, blocking
from fuseboard.agent_api.arguments import INVALID
from fuseboard.cli import main
from fuseboard.contract.policy import Dependency, Limit, Tier
from fuseboard.contract.words import Dimension
from tests.agents.published import publish
from tests.agents.servers import POLICY

PAGE = (Path(__file__).resolve().parents[2] / "docs/envoy.md").read_text()
FILE, *_ = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def limits_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the page, in the present folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "limits.yaml"
    path.write_text(FILE)
    return path


def test_the_samples_of_the_page_run(limits_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = re.findall(r"```console\n\$ fuseboard (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert len(samples) == 2
    for command, output in samples:
        assert main(shlex.split(command)) == 0
        assert capsys.readouterr().out == output


def test_check_prints_json(limits_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envoy", "check", "limits.yaml", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["file"], found["domain"]) == ("limits.yaml", "edge")
    assert found["rules"][1]["rule"] == ["tenant", "remote_address"]
    assert found["rules"][1]["line"] == 6
    assert found["notes"] == []


def test_check_names_the_headers_of_a_domain(limits_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits_yaml.write_text("domain: d\nheaders: legacy\n")
    assert main(["envoy", "check", "limits.yaml"]) == 0
    assert "headers: answers have RateLimit-Limit, RateLimit-Rem" in capsys.readouterr().out
    assert main(["envoy", "check", "--json", "limits.yaml"]) == 0
    assert '"headers":"legacy"' in capsys.readouterr().out


def test_check_says_whether_a_rule_that_charges_after_the_work_can_refuse(
    limits_yaml: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits_yaml.write_text(
        "domain: d\ndescriptors:\n"
        "- {key: own, charge: after, measure: tokens, rate_limit: {unit: day, requests_per_unit: 9}}\n"
        "- {key: call, charge: after, measure: tokens, dependency: payments}\n"
    )
    assert main(["envoy", "check", "limits.yaml"]) == 0
    _, _, own, _, call = capsys.readouterr().out.splitlines()
    assert own.endswith("charged after the work; only a check with 0 hits is refused")
    assert call.endswith("charged after the work, never refused")


def test_try_prints_json(limits_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["-d", "generic_key=slow-path", "-d", "generic_key=a=b"]
    assert main(["envoy", "try", "limits.yaml", "--json", *asked]) == 0
    slow, unknown = json.loads(capsys.readouterr().out)
    assert slow["verdict"] == "limit"
    assert slow["counted"] == ["generic_key", "slow-path"]
    assert unknown["verdict"] == "unmatched"


def test_problems_have_the_line_of_the_file(limits_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits_yaml.write_text("domain: d\ndescriptors:\n- key: k\n  quota_mode: true\n")
    for command in (["check", "limits.yaml"], ["try", "limits.yaml", "-d", "k=v"]):
        assert main(["envoy", *command]) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("limits.yaml:4: quota_mode is not supported")


def test_files_are_checked_together(limits_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.yaml").write_text("domain: other\n")
    assert main(["envoy", "check", "limits.yaml", "other.yaml"]) == 0
    assert "other.yaml: domain other, 0 rules\n" in capsys.readouterr().out
    Path("wrong.yaml").write_text("{}")
    Path("copy.yaml").write_text("# the same domain\n" + FILE)
    assert main(["envoy", "check", "limits.yaml", "wrong.yaml", "copy.yaml", "other.yaml"]) == 1
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "wrong.yaml:1: Enter the name of the domain.",
        "copy.yaml:2: The domain edge is also in limits.yaml.",
    ]
    assert "other.yaml: domain other" in printed.out


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["check", "absent.yaml"], "cannot read absent.yaml"),
        (["try", "limits.yaml", "-d", "k"], "KEY=VALUE"),
        (["try", "limits.yaml", "-d", "=v"], "KEY=VALUE"),
        (["try", "limits.yaml", "-d", "k=\udcff"], "must be UTF-8, not 'k=\\udcff'"),
    ],
)
def test_a_wrong_use_is_explained(
    limits_yaml: Path, capsys: pytest.CaptureFixture[str], command: list[str], problem: str
) -> None:
    assert main(["envoy", *command]) == 2
    assert problem in capsys.readouterr().err


def test_a_large_file_is_refused_without_reading_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(64 * 2**20)
    tracemalloc.start()
    try:
        assert main(["envoy", "check", str(path)]) == 1
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 * 2**20
    assert "The file is larger than 256 KiB" in capsys.readouterr().err


def test_without_pyyaml_the_command_names_the_extra(
    limits_yaml: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuseboard.cli.descriptor_files.find_spec", lambda name: None)
    assert main(["envoy", "check", "limits.yaml"]) == 2
    assert "fuseboard[envoy]" in capsys.readouterr().err


PER_IP = Limit(name="per-ip", limit=3, window_ms=60_000, burst=3, per=(Dimension.IP,))
REQUESTS = Limit(name="requests", limit=10, window_ms=60_000, burst=10)
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(Tier(name="free", quotas=(REQUESTS, PER_IP)),),
    dependencies=(Dependency(name="payments-api", vendor_limits=(REQUESTS,)),),
)


@pytest.fixture
def pod(limits: redis.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a pod; the configuration is published."""
    publish(limits, RULES, revision=42)
    for name in list(os.environ):
        if name.startswith("FUSEBOARD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", str(tmp_path / "state"))


def test_try_explains_what_is_left(
    limits_yaml: Path, pod: None, redis_url: str, limits: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    with blocking.Agent(settings=AgentSettings(redis_url=redis_url, server="shop-1")) as agent:
        assert agent.admit_request("acme", 2, subject=Subject(ip="192.0.2.1")).allowed
    stored = {key: limits.dump(key) for key in limits.scan_iter()}
    asked = [
        "-d",
        "tenant=acme",
        "remote_address=192.0.2.1",
        "-d",
        "tenant=acme",
        "-d",
        "generic_key=slow-path",
    ]
    cluster = "destination_cluster=outbound|443||api.example.com"
    assert main(["envoy", "try", "limits.yaml", "--explain", "--json", *asked, "-d", cluster]) == 0
    caller, tenant, slow, call = json.loads(capsys.readouterr().out)
    left = {limit["name"]: limit["remaining"] for limit in caller["explanation"]["limits"]}
    assert left == {"requests": 8, "per-ip": 1}
    assert not {limit["name"]: limit["binds"] for limit in tenant["explanation"]["limits"]}["per-ip"]
    assert slow["explanation"] is None
    assert call["explanation"]["breaker"]["state"] == "closed"
    assert {key: limits.dump(key) for key in limits.scan_iter()} == stored

    assert main(["envoy", "try", "limits.yaml", "--explain", "-d", "tenant=acme"]) == 0
    printed = capsys.readouterr().out
    assert "    a request of tenant 'acme'\n" in printed
    assert "next decision" in printed


def test_an_invalid_tenant_is_explained_as_a_pod_counts_it(
    limits_yaml: Path, pod: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["envoy", "try", "limits.yaml", "--explain", "-d", "tenant="]) == 0
    assert f"a request of tenant {INVALID!r}" in capsys.readouterr().out


def test_an_explanation_needs_a_configuration(
    limits_yaml: Path, pod: None, limits: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    limits.flushall()
    assert main(["envoy", "try", "limits.yaml", "--explain", "-d", "tenant=acme"]) == 2
    assert "no configuration yet" in capsys.readouterr().err


def test_an_explanation_shows_no_log_lines(
    limits_yaml: Path, pod: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def explain(*given: object, **about: object) -> None:
        logging.getLogger("fuseboard.breaker").warning("breaker.opened")

    monkeypatch.setattr("fuseboard.cli.envoy.explain", explain)
    # The handlers of pytest would take the line.
    for name in ("", "fuseboard"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    assert main(["envoy", "try", "limits.yaml", "--explain", "-d", "tenant=acme"]) == 0
    assert capsys.readouterr().err == ""
