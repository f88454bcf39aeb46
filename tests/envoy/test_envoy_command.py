"""The commands ``fuseboard envoy check`` and ``fuseboard envoy try``, and the samples of docs/envoy.md."""

import json
import re
import shlex
from pathlib import Path

import pytest

from fuseboard.cli import main

PAGE = (Path(__file__).resolve().parents[2] / "docs/envoy.md").read_text()
[FILE] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


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
    found = json.loads(capsys.readouterr().out)
    assert found["domain"] == "edge"
    assert found["rules"][1]["rule"] == ["tenant", "remote_address"]
    assert found["rules"][1]["line"] == 6
    assert found["notes"] == []


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


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["check", "absent.yaml"], "cannot read absent.yaml"),
        (["try", "limits.yaml", "-d", "k"], "KEY=VALUE"),
        (["try", "limits.yaml", "-d", "=v"], "KEY=VALUE"),
    ],
)
def test_a_wrong_use_is_explained(
    limits_yaml: Path, capsys: pytest.CaptureFixture[str], command: list[str], problem: str
) -> None:
    assert main(["envoy", *command]) == 2
    assert problem in capsys.readouterr().err


def test_without_pyyaml_the_command_names_the_extra(
    limits_yaml: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuseboard.cli.envoy.find_spec", lambda name: None)
    assert main(["envoy", "check", "limits.yaml"]) == 2
    assert "fuseboard[envoy]" in capsys.readouterr().err
