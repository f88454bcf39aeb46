"""``tools/chart_tools.sh`` builds each program once, and leaves no folder behind."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
#: A stand-in for Go: it builds what the last word names, or what FAILS names ends it.
GO = """#!/bin/sh
for module; do :; done
name=${module##*/}; name=${name%@*}
echo "$name" >>"$SAID"
[ "$name" != "${FAILS:-}" ] || { touch "$GOBIN/half"; exit 1; }
sleep "${PAUSE_S:-0}"
printf '#!/bin/sh\\n' >"$GOBIN/$name"; chmod +x "$GOBIN/$name"
"""


class Machine:
    def __init__(self, folder: Path) -> None:
        self.tools, self.said = folder / "cache" / "tools", folder / "said"
        self.temporary, commands = folder / "tmp", folder / "bin"
        for made in (self.temporary, commands):
            made.mkdir()
        (commands / "go").write_text(GO)
        (commands / "go").chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "TMPDIR": str(self.temporary),
            "SAID": str(self.said),
        }

    def begin(self, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", ROOT / "tools/chart_tools.sh", self.tools],
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, **variables: str) -> tuple[int, str]:
        process = self.begin(**variables)
        printed, _ = process.communicate(timeout=60)
        return process.returncode, printed

    def built(self) -> list[str]:
        return sorted(path.name.partition("-")[0] for path in self.tools.glob("*"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_builds_both_once_and_leaves_nothing_behind(machine: Machine) -> None:
    ended, printed = machine.run()
    assert (ended, len(printed.splitlines())) == (0, 2)
    assert machine.built() == ["helm", "kubeconform"]
    assert machine.run() == (0, "")
    assert machine.said.read_text().split() == ["kubeconform", "helm"]
    assert list(machine.temporary.iterdir()) == []


@pytest.mark.parametrize(("fails", "built"), [("kubeconform", []), ("helm", ["kubeconform"])])
def test_a_build_that_fails_leaves_nothing_behind(machine: Machine, fails: str, built: list[str]) -> None:
    assert machine.run(FAILS=fails)[0] == 1
    assert machine.built() == built
    assert list(machine.temporary.iterdir()) == []


def test_a_build_that_is_interrupted_leaves_nothing_behind(machine: Machine) -> None:
    process = machine.begin(PAUSE_S="300")
    wait_until(machine.said.exists, "the build to begin", within_s=60)
    # Go gets it too, as with Ctrl-C, which a test may not get: some runners ignore it.
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert machine.built() == []
    assert list(machine.temporary.iterdir()) == []
