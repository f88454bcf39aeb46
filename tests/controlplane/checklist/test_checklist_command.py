"""``fuseboard doctor --checklist`` against a real web process, and its exit codes."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.policies.models import Dependency
from fuseboard.cli import main
from tests.controlplane.calling import token_of
from tests.controlplane.checklist.checklist_rows import put_poor_rows, put_rich_rows
from tests.controlplane.web_process import web_running


@pytest.fixture
def poor(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_poor_rows(production, monkeypatch)


@pytest.fixture
def rich(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_rich_rows(production, monkeypatch)


@pytest.fixture(scope="module")
def web(django_db_setup: Any, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with web_running(tmp_path_factory.mktemp("web")) as processes:
        yield processes.by_name["web"].url


@pytest.fixture
def doctor(web: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("FUSEBOARD_API_URL", web)

    def run(*arguments: str, token: str = "") -> tuple[int, str, str]:
        monkeypatch.setenv("FUSEBOARD_API_TOKEN", token or token_of("viewer"))
        code = main(["doctor", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_command_prints_lines_and_exits_with_1_while_something_is_missing(
    doctor: Any, poor: None
) -> None:
    code, said, _ = doctor("--checklist")
    assert code == 1
    assert re.search(r"MISS  Each breaker has a described fallback: 2 of 2 have no fallback note", said)
    assert "-> Write into fallback_note" in said
    assert "docs/protection.md#fallbacks" in said
    code, said, _ = doctor("--checklist", "--json")
    assert code == 1
    assert json.loads(said)["counts"]["missing"] > 0


def test_the_command_exits_with_0_unless_strict_finds_something_to_look_at(doctor: Any, rich: None) -> None:
    # The process that answers has the settings of a test.
    assert doctor("--checklist")[0] == 0
    Dependency.objects.filter(name="openai").update(open_ms=5_000)
    assert doctor("--checklist")[0] == 0
    code, said, _ = doctor("--checklist", "--strict")
    assert code == 1
    assert "look  The open time lets the dependency recover: 1 of 2" in said


def test_the_command_exits_with_2_if_it_cannot_read_the_checklist(
    doctor: Any, production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said, error = doctor("--checklist", token="fb_wrong_token")
    assert (code, said) == (2, "")
    assert error.startswith("fuseboard doctor: ")
    assert doctor("--checklist", "--environment", "nowhere")[0] == 2
    assert doctor("--strict")[0] == 2
    monkeypatch.setenv("FUSEBOARD_API_URL", "")
    assert main(["doctor", "--checklist"]) == 2


def test_the_page_of_a_stopped_control_plane_is_not_a_passed_checklist(
    production: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FUSEBOARD_API_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("FUSEBOARD_API_TOKEN", "fb_any_token")
    assert main(["doctor", "--checklist"]) == 2
    assert "does not answer" in capsys.readouterr().err
