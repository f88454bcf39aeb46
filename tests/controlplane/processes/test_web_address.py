"""The addresses that `web`, `first_admin` and `new_link` print: a newcomer who clicks them reaches a page."""

import http.client
import os
import re
import subprocess
import sys
from contextlib import ExitStack, closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.management.web_address import people_open, served_at
from tests.controlplane.web_process import database_url
from tests.waiting import wait_until

PROJECT = Path(__file__).resolve().parents[3]
WHERE = ("FUSEBOARD_ORIGINS", "FUSEBOARD_ALLOWED_HOSTS", "FUSEBOARD_BEHIND_PROXY", "FUSEBOARD_TLS_CERT_FILE")


def printed_by_web(folder: Path, stack: ExitStack, **variables: str) -> str:
    """What a web process on a free port prints until it answers."""
    environment = {
        name: value for name, value in os.environ.items() if name not in (*WHERE, "FUSEBOARD_PLAIN_HTTP")
    }
    environment |= {
        "DATABASE_URL": database_url(),
        "FUSEBOARD_DATA_DIR": str(folder),
        "PYTHONUNBUFFERED": "1",
        **variables,
    }
    file = folder / "printed"
    with file.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "web", "--port", "0"],
            cwd=PROJECT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)

    def ready() -> bool:
        assert process.poll() is None, file.read_text()
        return "Application startup complete" in file.read_text()

    wait_until(ready, "web", within_s=60)
    return file.read_text()


@pytest.mark.django_db(transaction=True)
def test_the_printed_address_leads_to_the_login(tmp_path: Path) -> None:
    with ExitStack() as stack:
        printed = printed_by_web(tmp_path, stack)
        found = re.search(r"Serving http://(127\.0\.0\.1):(\d+)/", printed)
        assert found, printed
        assert f"first_admin --address http://127.0.0.1:{found[2]}\n" in printed
        assert "redirects to https" not in printed
        with closing(http.client.HTTPConnection(found[1], int(found[2]), timeout=10)) as browser:
            browser.request("GET", "/")
            answer = browser.getresponse()
            answer.read()
            assert (answer.status, answer.headers["Location"]) == (302, "/login?next=/")


@pytest.mark.django_db(transaction=True)
def test_web_names_the_setting_when_every_page_redirects_to_https(tmp_path: Path) -> None:
    with ExitStack() as stack:
        printed = printed_by_web(tmp_path, stack, FUSEBOARD_ORIGINS="https://board.example.com")
    assert "People open https://board.example.com/" in printed
    assert "Every page redirects to https, which this process does not serve." in printed
    assert "first_admin" not in printed, "its own default is this address"


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),  # noqa: S104 - it is only named
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
    ],
)
def test_a_process_on_every_address_is_opened_by_the_loopback_address(host: str, address: str) -> None:
    assert served_at("http", host, 80) == address


@pytest.mark.django_db(transaction=True)
def test_links_begin_with_the_given_address(settings: Any) -> None:
    hints = StringIO()

    def printed(command: str, *arguments: str) -> str:
        output = StringIO()
        hints.seek(0)
        hints.truncate()
        call_command(command, *arguments, stdout=output, stderr=hints)
        return output.getvalue()

    settings.ORIGINS = []
    assert people_open() == "http://127.0.0.1:8000"
    assert printed("first_admin").startswith("http://127.0.0.1:8000/welcome/")
    other_port = "If `python manage.py web` prints another address than http://127.0.0.1:8000, begin"
    assert other_port in hints.getvalue(), "web takes another port if 8000 is in use"
    there = "http://localhost:8765"
    assert printed("first_admin", "--address", f"{there}/").startswith(f"{there}/welcome/")
    assert printed("new_link", "admin", "--address", there).startswith(f"{there}/welcome/")
    assert other_port not in hints.getvalue()
    assert printed("new_link", "admin")
    assert other_port in hints.getvalue()
    settings.ORIGINS = ["https://board.example.com"]
    assert printed("first_admin").startswith("https://board.example.com/welcome/")
    assert other_port not in hints.getvalue()
    with pytest.raises(CommandError, match="not an address"):
        printed("first_admin", "--address", "localhost")
