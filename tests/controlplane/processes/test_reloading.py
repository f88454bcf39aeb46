"""Settings in files that change while a process runs."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane import reloading
from controlplane.reloading import ReloadedText, apply_log_level

NAME = "FUSEBOARD_METRICS_TOKEN"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    monkeypatch.setenv(f"{NAME}_FILE", str(path))
    monkeypatch.delenv(NAME, raising=False)
    monkeypatch.setattr(reloading, "READ_S", 0.0)
    return path


def test_a_changed_file_is_read_again(file: Path) -> None:
    setting = ReloadedText(NAME)
    assert setting.get("of the start") == "first"
    file.write_text("second")
    assert setting.get("of the start") == "second"


def test_a_file_is_not_read_for_each_question(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading, "READ_S", 3600.0)
    setting = ReloadedText(NAME)
    assert setting.get("") == "first"
    file.write_text("second")
    assert setting.get("") == "first"


def test_without_its_file_the_last_value_stays(file: Path) -> None:
    setting = ReloadedText(NAME)
    assert setting.get("of the start") == "first"
    file.unlink()
    assert setting.get("of the start") == "first"
    assert ReloadedText(NAME).get("of the start") == "of the start"


def test_while_the_file_is_empty_the_last_value_stays(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that is rewritten in place is empty for a moment."""
    setting = ReloadedText(NAME)
    assert setting.get("of the start") == "first"
    for text in ("", "\n", ""):
        file.write_text(text)
        assert setting.get("of the start") == "first"
    assert caplog.text.count("setting.not_read") == 1
    file.write_text("second")
    assert setting.get("of the start") == "second"
    file.write_text("")
    assert ReloadedText(NAME).get("of the start") == "of the start"


def test_a_file_that_cannot_be_read_is_logged_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    setting = ReloadedText(NAME)
    file.unlink()
    assert [setting.get("of the start") for _ in range(3)] == ["of the start"] * 3
    assert caplog.text.count("setting.not_read") == 1


def test_a_value_of_the_environment_never_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(f"{NAME}_FILE", raising=False)
    assert ReloadedText(NAME).get("of the start") == "of the start"


@pytest.fixture
def levels() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in (None, "django")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def test_without_its_file_the_log_level_of_the_start_stays(
    levels: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEBOARD_LOG_LEVEL_FILE", str(tmp_path / "missing"))
    monkeypatch.delenv("FUSEBOARD_LOG_LEVEL", raising=False)
    logging.getLogger().setLevel(logging.ERROR)

    def end(_: float) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(reloading.time, "sleep", end)
    with pytest.raises(ZeroDivisionError):
        reloading._follow()
    assert logging.getLogger().level == logging.ERROR


def test_a_log_level_applies_at_once_and_a_wrong_one_does_not(levels: None) -> None:
    apply_log_level("debug")
    assert logging.getLogger().level == logging.getLogger("django").level == logging.DEBUG
    apply_log_level("LOUD")
    assert logging.getLogger().level == logging.DEBUG
    apply_log_level("ERROR")
    assert logging.getLogger().level == logging.ERROR
