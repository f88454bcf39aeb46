"""``tools/environment.sh``: uv where it is installed, pip otherwise, and the same hashes in both."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
#: Stand-ins for Python, with its modules venv and pip, and for uv. They note their arguments.
PYTHON = """#!/bin/sh
case "$*" in
    --version) echo "Python 3.12.0" ;;
    "-m venv --clear "*) mkdir -p "$4/bin" "$4/lib/python3.12/site-packages"; cp "$0" "$4/bin/python" ;;
    "-m pip "*)
        echo "$*" >>"$SAID"; echo $$ >"$SAID.pid"
        sleep "${PAUSE_S:-0}"; echo "the hash differs"; exit "${PIP_ENDS:-0}" ;;
esac
"""
UV = """#!/bin/sh
[ "$1" = --version ] && exit 0
echo "uv $*" >>"$SAID"
sleep "${PAUSE_S:-0}"
echo "the index does not answer" >&2
exit "${UV_ENDS:-0}"
"""


@pytest.fixture
def uv(tmp_path: Path) -> str:
    return str(_script(tmp_path / "uv", UV))


def _script(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o755)
    return file


def make(folder: Path, uv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    process = begin(folder, uv, **variables)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def begin(folder: Path, uv: str, **variables: str) -> subprocess.Popen[str]:
    requirements = folder / "requirements.txt"
    requirements.write_text("shop==1.0 \\\n    --hash=sha256:00\nbar==2.0 \\\n    --hash=sha256:00\n")
    python = _script(folder / "python", PYTHON)
    return subprocess.Popen(
        ["sh", str(ROOT / "tools/environment.sh"), str(folder / "venv"), str(requirements)],
        env=os.environ | {"PYTHON": str(python), "UV": uv, "SAID": str(folder / "said"), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background ignores it, and so would the script.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _runs(pid: str) -> bool:
    with suppress(OSError):
        # A process that has ended has no command line, even if its parent has not noticed.
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    return False


def said(folder: Path) -> list[str]:
    return (folder / "said").read_text().splitlines()


def test_uv_installs_with_hashes_where_it_is_there(tmp_path: Path, uv: str) -> None:
    done = make(tmp_path, uv)
    assert done.returncode == 0, done.stderr
    [line] = said(tmp_path)
    assert line.startswith("uv pip install --python ")
    assert "--require-hashes --requirement" in line
    assert (tmp_path / "venv/.stamp").exists()
    assert make(tmp_path, uv).stdout == "", "there is nothing to do the second time"
    assert said(tmp_path) == [line]


def test_pip_takes_over_where_uv_fails(tmp_path: Path, uv: str) -> None:
    """uv does not read the configuration of pip, which may name the only index that answers."""
    done = make(tmp_path, uv, UV_ENDS="2")
    assert done.returncode == 0, done.stderr
    assert "uv failed, so pip tries: the index does not answer" in done.stdout
    assert "--require-hashes" in said(tmp_path)[1]
    assert (tmp_path / "venv/.stamp").exists()


@pytest.mark.parametrize("missing", ["", "/nowhere/uv"])
def test_pip_installs_with_hashes_where_there_is_no_uv(tmp_path: Path, missing: str) -> None:
    done = make(tmp_path, missing)
    assert done.returncode == 0, done.stderr
    assert "with Python 3.12.0 and pip" in done.stdout
    [line] = said(tmp_path)
    assert "--require-hashes" in line


def test_a_failed_installation_prints_why_and_is_repeated(tmp_path: Path, uv: str) -> None:
    done = make(tmp_path, uv, UV_ENDS="1", PIP_ENDS="1")
    assert done.returncode == 1
    assert "the hash differs" in done.stderr
    assert not (tmp_path / "venv/.stamp").exists()


@pytest.mark.parametrize("program", ["uv", "pip"])
def test_a_long_installation_prints_its_progress(tmp_path: Path, uv: str, program: str) -> None:
    done = make(tmp_path, uv if program == "uv" else "", PAUSE_S="6")
    assert done.returncode == 0, done.stderr
    assert "  5 s: 0 of 2 packages" in done.stdout


def test_ctrl_c_ends_pip(tmp_path: Path) -> None:
    """A shell in the background ended, and pip went on without it."""
    process = begin(tmp_path, "", PAUSE_S="10")
    pid = tmp_path / "said.pid"
    wait_until(pid.exists, "pip")
    wait_until(lambda: pid.read_text().strip(), "its number")
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    wait_until(lambda: not _runs(pid.read_text().strip()), "the end of pip", within_s=5)
    process.communicate()
