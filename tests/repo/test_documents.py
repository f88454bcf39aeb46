"""What documents name exists."""

import re
import subprocess
from pathlib import Path

import pytest

from fuseboard import settings as agent_settings

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/ARCHITECTURE.md")]
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_path_and_name_in_the_documents_exists(document):
    """Documents name things instead of linking to them; every name must exist."""
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    words = set(re.findall(r"`([^`\s]+)`", prose))
    folders = "agents|controlplane|dashboard|deploy|docs|requirements|tests|tools"
    paths = {word for word in words if re.match(rf"(?:{folders})/[\w./-]*$", word)}
    assert {path for path in paths if not (ROOT / path).exists()} == set()
    names = {
        word
        for word in words
        if re.fullmatch(r"[a-z]+_[a-z_]+|(?:[A-Z][a-z]+){2,}|\w+\.(?:py|lua|html)", word)
    }
    sources = [
        ROOT / name for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
    ]
    code = "".join(
        f"{file}\n{file.read_text()}" for file in sources if file.suffix in (".py", ".lua", ".html", ".toml")
    )
    assert {name for name in names if name not in code} == set()


def test_the_makefile_has_the_documented_targets():
    assert {
        "demo",
        "test",
        "test-full",
        "soak",
        "lint",
        "bench",
        "faults",
        "help",
        "format",
        "clean",
    } <= TARGETS


def test_help_names_every_command():
    out = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in ("demo", "test", "test-full", "soak", "lint", "bench", "faults"):
        assert re.search(rf"^make {name} ", out, re.MULTILINE)


def test_an_old_python_gets_one_clear_line(tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\ncase "$2" in *print*) echo 3.8.1 ;; *) exit 1 ;; esac\n')
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "demo", f"PYTHON={old}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    lines = (done.stdout + done.stderr).strip().splitlines()
    assert len(lines) == 1
    assert "needs Python 3.11 or newer (found: 3.8.1)" in lines[0]


def test_the_index_of_decisions_is_complete():
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    pages = sorted(page.name for page in folder.glob("[0-9]*.md"))
    assert [page for page in pages if f"]({page})" not in index] == []
    assert [page[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]


@pytest.mark.parametrize("page", sorted((ROOT / "docs/adr").glob("[0-9]*.md")), ids=lambda page: page.stem)
def test_a_decision_has_background_decision_and_consequences(page):
    text = page.read_text()
    for part in ("**Background.**", "**Decision.**", "**Consequences.**"):
        assert part in text
    assert len(text.splitlines()) <= 40, "half a page"


def test_the_readme_lists_every_variable_that_is_read_and_no_other():
    read = {"DATABASE_URL"}
    for folder in ("controlplane", "dashboard", "agents", "tools/demo"):
        for file in (ROOT / folder).rglob("*.py"):
            read |= set(re.findall(r"\"(FUSEBOARD_[A-Z_]*[A-Z])\"", file.read_text()))
    read |= {f"FUSEBOARD_{name}" for name in agent_settings._OURS}
    # NAME_FILE may stand for NAME; one sentence above the table says so.
    read -= {f"{name}_FILE" for name in read}
    read -= {"FUSEBOARD_DEMO"}  # set by the demo itself, to find its processes
    page = (ROOT / "docs/settings.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line[:3] == "| `"]
    assert {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)} == read


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 200
