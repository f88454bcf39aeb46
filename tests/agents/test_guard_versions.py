"""``fuseboard.guard`` with each minor version of the clients that it supports: it reads their private parts.

A new minor version gets a row when its package is updated: the first test fails until then.
"""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: From the oldest that ``pyproject.toml`` allows to the newest that the tests install, or that is known.
SUPPORTED = {
    "httpx": ["0.28"],
    "httpx2": ["2.16"],
    "requests": ["2.32", "2.33", "2.34"],
    "openai": ["3.54", "3.55", "3.56", "3.57"],
    "anthropic": ["2.12", "2.13", "2.14"],
}
MINORS = [(package, minor) for package, minors in SUPPORTED.items() for minor in minors]


def test_the_versions_that_the_tests_install_are_in_the_table():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    declared = [one for group in (*extras.values(), *project["dependency-groups"].values()) for one in group]
    for package, minors in SUPPORTED.items():
        assert ".".join(version(package).split(".")[:2]) in minors, package
        oldest = {
            one.split(">=")[1] for one in declared if isinstance(one, str) and one.startswith(f"{package}>=")
        }
        assert oldest == {minors[0]}, f"{package}: begin its row with the oldest version that is allowed"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("package", "minor"), MINORS, ids=[f"{name} {minor}" for name, minor in MINORS])
def test_a_client_of_this_version_is_guarded(package: str, minor: str, tmp_path: Path):
    wanted = [f"{package}~={minor}.0"]
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
    found = subprocess.run([*install, "--target", str(tmp_path), *wanted], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"pip cannot install {wanted[0]}: {found.stderr.strip().splitlines()[-1]}")
    run = subprocess.run(
        [sys.executable, "-m", "tests.agents.guarded_client", package, minor],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT / 'agents'}", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
