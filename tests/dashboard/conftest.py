import http.client
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fleet_rows import breaker, put_figures, put_new_servers
from fleet_screen import fleet, fleet_browser, fleet_context, screen  # noqa: F401 - fixtures

from tests import database
from tests.chromium import running_chromium
from tests.people import SEED, create_people
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

RUNBOOK = """# Payment provider timeouts

## Symptoms

Charges time out. <script>alert(1)</script>

## Impact

Orders wait.

## Resolution

1. **Is it them?** Read [their page](https://status.example).
2. [Not a link](javascript:alert(1))

## Verification

Charges are accepted.

## Escalation

Call the owner.
"""


@pytest.fixture
def production(transactional_db: Any, limits: Any) -> str:
    """An environment with two dependencies, a tenant, four users and three pods."""
    database.fill("dashboard", _production, limits)
    create_people("vera", "olga", "ada", "bob")
    put_new_servers(("web-1", "web-2", "web-3"), breakers=[breaker("payments-api"), breaker("search")])
    put_figures()
    return "production"


def _production() -> None:
    from controlplane.editing import edits
    from controlplane.policies.protection_presets import preset_of_kind

    common: dict[str, Any] = {"reason": "for a test", "actor": SEED}
    edits.create_environment(environment="production", **common)
    edits.save_runbook(
        runbook="payment-provider-timeouts", title="Payment provider timeouts", body=RUNBOOK, **common
    )
    for name in ("payments-api", "search"):
        edits.create_dependency(
            environment="production",
            dependency=name,
            kind="external",
            fallback_note="Order queue",
            protection=preset_of_kind("external", timeout_ms=30_000),
            runbook="payment-provider-timeouts",
            **common,
        )
    edits.create_tenant(environment="production", tenant="acme-retail", tier="pro", **common)


@pytest.fixture
def client(client: Any, settings: Any) -> Any:
    """Django's test client without TLS: otherwise every response is a redirect."""
    settings.SECURE_SSL_REDIRECT = False
    return client


@pytest.fixture
def log_in(client: Any, production: str) -> Callable[[str], Any]:
    """Django's test client, logged in as this person."""
    from controlplane.accounts.models import User

    def as_user(name: str) -> Any:
        client.force_login(User.objects.get(username=name))
        return client

    return as_user


@pytest.fixture(scope="session")
def web(django_db_setup: Any, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real web process on a free port, which uses the tests' database."""
    from django.db import connection

    settings = connection.settings_dict
    host, port = settings["HOST"], settings["PORT"]
    place = f"host={quote(host, safe='')}" + (f"&port={port}" if port else "")
    secret = f":{quote(settings['PASSWORD'])}" if settings["PASSWORD"] else ""
    url = f"postgresql://{quote(settings['USER'])}{secret}@/{settings['NAME']}?{place}"
    if not host.startswith("/"):
        url = f"postgresql://{quote(settings['USER'])}{secret}@{host}:{port or 5432}/{settings['NAME']}"
    listener, number = _free_port()
    listener.close()
    address = f"http://127.0.0.1:{number}"
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "FUSEBOARD_PLAIN_HTTP": "1",
        "FUSEBOARD_ORIGINS": address,
        "FUSEBOARD_LOG_LEVEL": "WARNING",
    }
    command = [sys.executable, "manage.py", "web", "--port", str(number), "--exactly"]
    # A file takes any amount of output; a pipe without a reader would block the process one day.
    output_file = tmp_path_factory.mktemp("web") / "output"
    with output_file.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _await_health(process, number, output_file)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> tuple[Any, int]:
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    return listener, listener.getsockname()[1]


def _await_health(process: subprocess.Popen[bytes], port: int, output_file: Path) -> None:
    def healthy() -> bool:
        if process.poll() is not None:
            pytest.fail(f"The web process ended: {output_file.read_text()}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/healthz")
            with connection.getresponse() as answer:
                return answer.status == 200
        except OSError:
            return False
        finally:
            connection.close()

    wait_until(healthy, "an answer of the web process", within_s=200)


@pytest.fixture(scope="module")
def chromium(web: str) -> Iterator[Any]:
    """One real browser for a module: it stops with the module, so that its event loop disturbs no other
    test.
    """
    from django.db import connections

    with running_chromium() as browser:
        yield browser
    # Django's tests do not close the connection that they used beside the browser's event loop. The next test
    # may have no database, and must not find it.
    connections.close_all()


@pytest.fixture
def page(chromium: Any, web: str, production: str) -> Iterator[Any]:
    """A new page, which fails the test on any console error, script error or blocked resource."""
    context = chromium.new_context(viewport={"width": 1440, "height": 1000}, base_url=web)
    context.set_default_timeout(30_000)
    opened = context.new_page()
    opened.complaints = []
    # A rejected form gets a 4xx on purpose, and a page may be left while its socket still connects.
    expected = re.compile(
        r"Failed to load resource: the server responded with a status of (403|409|422)"
        r"|WebSocket is closed before the connection is established"
    )

    def note(text: str) -> None:
        if not expected.search(text):
            opened.complaints.append(text)

    opened.on("console", lambda m: note(m.text) if m.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: note(str(error)))
    yield opened
    context.close()
    assert opened.complaints == []


@pytest.fixture
def sign_in(page: Any, web: str) -> Callable[[str], Any]:
    """Log in by the cookie that a login sets: the form itself is for the tests of accounts."""
    from django.conf import settings
    from django.test import Client

    from controlplane.accounts.models import User

    def as_user(name: str) -> Any:
        client = Client()
        client.force_login(User.objects.get(username=name))
        # Its name promises TLS, which the tests' web does not speak.
        value = client.cookies[settings.SESSION_COOKIE_NAME].value
        page.context.add_cookies([{"name": "fuseboard", "value": value, "url": web}])
        page.goto("/")
        page.wait_for_selector("header.bar")
        return page

    return as_user


@pytest.fixture
def something_everywhere(production: str, limits: Any) -> None:
    from rows_everywhere import put_something_everywhere

    put_something_everywhere(limits)
