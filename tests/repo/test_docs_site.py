"""The documentation as a site: its side bar, its runbooks, and the pages that come from code.

`make lint` reads all pages as the site does, and fails for a link to a page or a heading that does not exist.
"""

import sys
from pathlib import Path

import pytest

from tools.docsite import build
from tools.docsite.conf import add_side_bar, drawn_runbook
from tools.docsite.write_pages import stale_pages

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_pages_that_come_from_code_are_up_to_date() -> None:
    assert stale_pages() == [], "run make docs"


def test_without_its_environment_the_site_says_what_to_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "SPHINX", tmp_path / "python")
    for check in (True, False):
        assert "Run: sh tools/environment.sh .venv-docs" in (build.build(check=check) or "")


def test_a_draw_that_failed_names_no_site(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[Path] = []
    monkeypatch.setattr(build, "SPHINX", tmp_path)
    monkeypatch.setattr(build, "SITE", tmp_path / "site")
    monkeypatch.setattr(build, "write_pages", written.append)
    monkeypatch.setattr(build, "draw", lambda **_: 2)
    for check in (True, False):
        assert "Sphinx ended with 2" in (build.build(check=check) or "")
    assert written == [DOCS]
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "site").exists()


def test_a_check_without_fault_ends_as_a_command_that_succeeds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "SPHINX", tmp_path)
    monkeypatch.setattr(build, "draw", lambda **_: 0)
    with pytest.raises(SystemExit) as end:
        sys.exit(build.build(check=True))
    assert end.value.code is None


def test_the_reference_has_each_public_method_with_its_signature() -> None:
    text = (DOCS / "agent-reference.md").read_text()
    assert "#### `Agent.call`" in text
    assert "async admit_request(tenant: str | None, cost: int = 1" in text
    assert "guard(client: C, agent: Agent | blocking.Agent" in text
    assert "``" not in text.replace("```", ""), "Markdown, not reStructuredText"
    assert "`Agent.start`" in text


def test_the_side_bar_has_a_group_for_each_section_of_the_index() -> None:
    index = (
        "# Title\n\n## One: more\n\n[a](a.md), [a part](a.md#part), [b](../b.md)\n"
        "\n## Two\n\n[a](a.md), [c](c/d.md)\n"
    )
    side_bar = add_side_bar(index).removeprefix(index)
    assert [line for line in side_bar.splitlines() if line.startswith((":caption:", "/"))] == [
        ":caption: One",
        "/docs/a",
        "/b",
        ":caption: Two",
        "/docs/c/d",
    ]


def test_a_runbook_says_what_only_the_dashboard_shows() -> None:
    drawn = drawn_runbook(
        '- Breaker: {{ value "breaker_state" dependency }}\n\n```action force-open\n```\n\n'
        "See [Costs](/costs?by=tenant)."
    )
    assert drawn == (
        "- Breaker: (on the dashboard)\n\n*The dashboard has a button here: force open.*\n\nSee *Costs*."
    )


def test_the_index_has_each_runbook() -> None:
    index = (DOCS / "index.md").read_text()
    missing = [path.name for path in DOCS.glob("runbooks/*.md") if f"(runbooks/{path.name})" not in index]
    assert missing == []
