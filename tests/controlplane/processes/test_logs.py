"""What may appear in a log, because more people read logs than may log in."""

import json
import logging
import re
import sys
import time
from typing import Any

import pytest
import structlog
from django.core import signing

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


REPORT = signing.dumps([7, 1, 1_777_900_331], key="k" * 50, salt="fuseboard.incident.report")
LINK = f"5f3a9b2188aa0f01-{SECRET}"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/incidents/shared/{}",
            "/incidents/shared//{}",
            "//incidents//shared///{}",
            "/Incidents/Shared/{}",
        ),
        *("/incidents/shared/{}/", "/incidents/shared/x/{}", "/shared/{}", "/{}", "/welcome/{}", "/x/y;{}"),
        *("/login?next=/incidents/shared/{}", "/incidents/shared?token={}", "{}"),
    ],
)
@pytest.mark.parametrize(
    "secret",
    [REPORT, REPORT.replace(":", "%3A"), LINK, f"fb_{'5f' * 8}_{SECRET}"],
    ids=("report", "report in a query", "link", "token"),  # the signature differs from process to process
)
def test_no_secret_of_a_link_is_logged_in_whatever_address_it_is(path: str, secret: str) -> None:
    """A link with a doubled slash was logged as it is, and was valid for 7 days."""
    said = json.dumps(line("django.request", logging.WARNING, "Not Found: %s", path.format(secret)))
    assert secret not in said
    assert SECRET not in said
    assert re.split(":|%3A", secret)[-1] not in said
    assert "***" in said


def test_secrets_are_hidden_in_lists_and_in_every_field() -> None:
    record = logging.LogRecord("any", logging.ERROR, __file__, 1, "odd", (), None)
    # As structlog passes an event of the product.
    record.msg = {"event": "odd", "paths": [f"/incidents/shared/{REPORT}"], "more": {"link": {"to": LINK}}}
    made = dict(logs.dict_config("INFO")["formatters"]["json"])
    del made["()"]
    said = structlog.stdlib.ProcessorFormatter(**made).format(record)
    assert REPORT not in said
    assert SECRET not in said


def test_the_password_of_a_server_and_the_secret_of_a_webhook_are_not_logged() -> None:
    told = "redis://control:hush-hush@limits:6379/0 refused; postgres://:pw1@db/x; whsec_c2VjcmV0LXNlY3JldA=="
    said = line("any", logging.ERROR, told)
    assert said["event"] == ("redis://control:***@limits:6379/0 refused; postgres://:***@db/x; whsec_***")


@pytest.mark.parametrize(
    "text", ["x" * 60_000, "/" * 60_000, "a:" * 30_000, "://" * 20_000, "x://y:" + "z" * 60_000, "0" * 60_000]
)
def test_a_long_address_is_searched_in_little_time(text: str) -> None:
    began = time.process_time()
    line("django.request", logging.WARNING, "Not Found: %s", text)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "text",
    [
        "/incidents/12/report",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "http://127.0.0.1:8001/agent/v1/sync asks user@example.com",
        "2026-11-28T12:13:14.123456Z",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert line("any", logging.INFO, text)["event"] == text


def test_a_refused_request_logs_one_line_and_a_failed_one_a_traceback() -> None:
    refused = line("django.request", logging.WARNING, "Forbidden: /people", exc_info=caught("role"))
    assert "exception" not in refused
    assert "exception" in line("django.request", logging.ERROR, "Internal: /", exc_info=caught("bug"))


def test_a_line_break_in_a_request_does_not_start_a_log_line() -> None:
    made = dict(logs.dict_config("INFO")["formatters"]["json"])
    del made["()"]
    record = logging.LogRecord("any", logging.INFO, __file__, 1, 'x\n{"level": "forged"}', (), None)
    assert "\n" not in structlog.stdlib.ProcessorFormatter(**made).format(record)
