"""The prose linter: pinned, without addresses, and never in the way of ``make lint``."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROSE = ROOT / "tools/prose"
LOCK = json.loads((PROSE / "package-lock.json").read_text())
WORDS = json.loads((PROSE / "words/words.json").read_text())


def test_every_package_is_pinned_by_hash_and_no_address_is_recorded():
    packages = {name: entry for name, entry in LOCK["packages"].items() if name.startswith("node_modules/")}
    assert len(packages) > 100
    ours = {name for name, entry in packages.items() if entry.get("link")}
    assert ours == {"node_modules/textlint-rule-product-words"}
    for name in packages.keys() - ours:
        assert packages[name]["integrity"].startswith("sha512-"), name
        assert "resolved" not in packages[name], name
    wanted = json.loads((PROSE / "package.json").read_text())["devDependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+|file:words", version) for version in wanted.values())


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("", "install Node.js 20 or newer with npm (on Debian: apt-get install nodejs npm)"),
        ("#!/bin/sh\necho v16.20.2\n", "it needs Node.js 20 or newer, and {node} is v16.20.2"),
        ("#!/bin/sh\necho broken >&2\nexit 3\n", "node failed: broken"),
    ],
)
def test_lint_goes_on_without_it_and_prints_how_to_get_it(tmp_path, node, said):
    if node:
        for name in ("node", "npm"):
            (tmp_path / name).write_text(node)
            (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [sys.executable, "tools/lint_prose.py"],
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"No suggestions on the English: {said.format(node=tmp_path / 'node')}\n"


@pytest.mark.parametrize("entry", WORDS, ids=lambda entry: entry["use"])
def test_a_word_of_the_list_is_a_pattern_that_both_readers_know(entry):
    """Python and JavaScript read the list: no lookbehind of changing width, no named groups, no flags."""
    assert set(entry) == {"wrong", "use"}
    assert not re.search(r"\(\?[^:!=<]|\(\?<[^!=]", entry["wrong"])
    assert re.compile(rf"\b(?:{entry['wrong']})\b", re.IGNORECASE).search(entry["use"]) is None
