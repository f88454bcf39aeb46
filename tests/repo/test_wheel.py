"""What a pod installs: the agent with its scripts, and nothing of the control plane."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_holds_the_agent_and_only_the_agent(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"fuseboard/__init__.py", "fuseboard/py.typed", "fuseboard/contract/keys.py"} <= names
    agents = ROOT / "agents"
    scripts = {path.relative_to(agents).as_posix() for path in (agents / "fuseboard/lua").rglob("*.lua")}
    assert scripts
    assert scripts <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"fuseboard"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
