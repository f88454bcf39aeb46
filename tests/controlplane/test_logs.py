"""What may appear in a log, because more people read logs than may log in."""

import json
import logging
import sys
from typing import Any

import structlog

from controlplane import logs

SECRET = "a1" * 32


def line(logger: str, level: int, text: str, *arguments: Any, exc_info: Any = None) -> dict[str, Any]:
    made = dict(logs.dict_config("INFO")["formatters"]["json"])
    del made["()"]
    record = logging.LogRecord(logger, level, __file__, 1, text, arguments, exc_info)
    found: dict[str, Any] = json.loads(structlog.stdlib.ProcessorFormatter(**made).format(record))
    return found


def caught(text: str) -> Any:
    try:
        raise PermissionError(text)
    except PermissionError:
        return sys.exc_info()


def test_a_link_that_sets_a_password_is_not_logged_although_its_form_was_refused() -> None:
    said = line("django.request", logging.WARNING, "Unprocessable Entity: %s", f"/welcome/5f3a9b21-{SECRET}")
    assert said["event"] == "Unprocessable Entity: /welcome/5f3a9b21-***"


def test_a_token_is_not_logged_wherever_it_turns_up() -> None:
    token = f"fb_{'5f' * 8}_{SECRET}"
    said = line("any", logging.ERROR, "odd header %s", token, exc_info=caught(f"Bearer {token}"))
    assert SECRET not in json.dumps(said)
    assert said["event"] == f"odd header fb_{'5f' * 8}_***"
    assert "PermissionError" in said["exception"]


def test_a_refused_request_logs_one_line_and_a_failed_one_a_traceback() -> None:
    refused = line("django.request", logging.WARNING, "Forbidden: /people", exc_info=caught("role"))
    assert "exception" not in refused
    assert "exception" in line("django.request", logging.ERROR, "Internal: /", exc_info=caught("bug"))


def test_a_line_break_in_a_request_does_not_start_a_log_line() -> None:
    made = dict(logs.dict_config("INFO")["formatters"]["json"])
    del made["()"]
    record = logging.LogRecord("any", logging.INFO, __file__, 1, 'x\n{"level": "forged"}', (), None)
    assert "\n" not in structlog.stdlib.ProcessorFormatter(**made).format(record)
