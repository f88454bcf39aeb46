"""The import contracts also cover packages that do not exist yet."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: A new file, what it must not import, and the contract that says so.
MADE_UP = {
    "controlplane/made_up/rules.py": (
        "import fuseboard.agent",
        "The control plane knows of the agent only the contract",
    ),
    "controlplane/made_up/of_a_room.py": (
        "from fuseboard.new_room import parts",
        "The control plane knows of the agent only the contract",
    ),
    "controlplane/made_up/pages.py": ("import dashboard.hub", "Nothing imports the pages"),
    "agents/fuseboard/contract/made_up.py": (
        "from fuseboard.new_room import parts",
        "The layers of the agent",
    ),
    "controlplane/made_up/demo.py": ("import tools.demo.seed", "The product imports no tool"),
    "controlplane/made_up/alone.py": ("", "The control plane's packages import downwards only"),
    "agents/fuseboard/new_room/pages.py": ("import dashboard.hub", "Nothing imports the pages"),
    "agents/fuseboard/new_room/subscriptions.py": (
        "import redis.asyncio",
        "The agent has its own connection to Redis",
    ),
    "agents/fuseboard/new_room/models.py": (
        "import django.db",
        "The agent knows neither Django nor the control plane",
    ),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages as they are, and two empty ones that are new."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", tree)
    for folder in ("agents/fuseboard", "controlplane", "dashboard", "tools"):
        shutil.copytree(
            ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__", "static", "migrations")
        )
    for package in ("controlplane/made_up", "agents/fuseboard/new_room"):
        (tree / package).mkdir()
        (tree / package / "__init__.py").touch()
    (tree / "agents/fuseboard/new_room/parts.py").touch()
    return tree


def broken(tree: Path) -> set[str]:
    """The names of the contracts that this tree breaks."""
    environment = os.environ | {"PYTHONPATH": f"{tree / 'agents'}{os.pathsep}{tree}"}
    done = subprocess.run(
        [sys.executable, Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Contracts: " in done.stdout, done.stdout + done.stderr
    return set(re.findall(r"^(.+?) BROKEN", done.stdout, re.MULTILINE))


@pytest.mark.parametrize("file", MADE_UP)
def test_a_new_package_is_covered_without_editing_a_list(tree: Path, file: str) -> None:
    import_, contract = MADE_UP[file]
    new = tree / file
    new.write_text(f"{import_}\n")
    try:
        assert contract in broken(tree)
    finally:
        new.unlink()


CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = {contract["name"]: contract for contract in CONTRACTS if contract["type"] == "layers"}


@pytest.mark.parametrize(
    ("heading", "contract"),
    [
        ("The layers of the agent", "The layers of the agent"),
        ("The layers of the control plane", "The control plane's packages import downwards only"),
    ],
)
def test_architecture_lists_the_layers_that_are_checked(heading: str, contract: str) -> None:
    page = (ROOT / "docs/ARCHITECTURE.md").read_text()
    section = page.split(f"### {heading}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    assert LAYERS[contract]["exhaustive"] is True
    assert [set(re.findall(r"`(\w+)`", row)) for row in rows] == [
        set(re.findall(r"\w+", layer)) for layer in LAYERS[contract]["layers"]
    ]
