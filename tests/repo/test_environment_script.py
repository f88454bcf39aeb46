"""``tools/environment.sh``: uv where it is installed, pip otherwise, and the same hashes in both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools/environment.sh"
#: A stand-in for uv. It writes down its arguments, and ends as it is asked to.
UV = """#!/bin/sh
[ "$1" = --version ] && exit 0
echo "$@" >>"$0.said"
sleep ${PAUSE_S:-0}
echo "the index does not answer" >&2
exit ${ENDS:-0}
"""


@pytest.fixture
def uv(tmp_path: Path) -> Path:
    file = tmp_path / "uv"
    file.write_text(UV)
    file.chmod(0o755)
    return file


def make(tmp_path: Path, uv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("# Nothing, so that no index is asked.\n")
    return subprocess.run(
        ["sh", str(SCRIPT), str(tmp_path / "venv"), str(requirements)],
        cwd=ROOT,
        env=os.environ | {"PYTHON": sys.executable, "UV": uv, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_uv_installs_with_hashes_where_it_is_there(tmp_path: Path, uv: Path) -> None:
    done = make(tmp_path, str(uv))
    assert done.returncode == 0, done.stderr
    [said] = Path(f"{uv}.said").read_text().splitlines()
    assert said.startswith("pip install --python ")
    assert "--require-hashes --requirement" in said
    assert (tmp_path / "venv/.stamp").exists()
    assert (done.stdout, make(tmp_path, str(uv)).stdout) == (done.stdout, ""), "nothing to do the second time"


def test_pip_takes_over_where_uv_fails(tmp_path: Path, uv: Path) -> None:
    """uv does not read the configuration of pip, which may name the only index that answers."""
    done = make(tmp_path, str(uv), ENDS="2")
    assert done.returncode == 0, done.stderr
    assert "uv failed, so pip tries: the index does not answer" in done.stdout
    assert (tmp_path / "venv/.stamp").exists()


@pytest.mark.parametrize("uv_is", ["", "/nowhere/uv"])
def test_pip_installs_where_there_is_no_uv(tmp_path: Path, uv_is: str) -> None:
    done = make(tmp_path, uv_is)
    assert done.returncode == 0, done.stderr
    assert "with Python 3" in done.stdout
    assert "and pip" in done.stdout


def test_a_long_installation_prints_its_progress(tmp_path: Path, uv: Path) -> None:
    done = make(tmp_path, str(uv), PAUSE_S="6")
    assert done.returncode == 0, done.stderr
    assert "  5 s: " in done.stdout


def test_a_package_with_another_hash_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "shop-1.0-py3-none-any.whl"
    wheel.write_bytes(b"not what was pinned")
    requirements = tmp_path / "pinned.txt"
    requirements.write_text(f"{wheel.as_uri()} --hash=sha256:{'0' * 64}\n")
    done = subprocess.run(
        ["sh", str(SCRIPT), str(tmp_path / "venv"), str(requirements)],
        cwd=ROOT,
        env=os.environ | {"PYTHON": sys.executable, "UV": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "hash" in done.stderr.lower()
    assert not (tmp_path / "venv/.stamp").exists()
