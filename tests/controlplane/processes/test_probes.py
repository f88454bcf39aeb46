"""Probes and scrapers name an address as the host, and ask while Postgres is away."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test import Client

from controlplane.embedded.postgres import Postgres
from tests import migrated
from tests.controlplane.web_process import web_running
from tests.waiting import wait_until

HOST = "fuseboard.example.com"
ADDRESSES = ["10.1.2.3:8000", "127.0.0.1:48000", "[fd00::7]:8000", "fuseboard-web-7d9f", "web_1:8000", "??"]
METRICS = {"Authorization": "Bearer the token of the scraper"}


@pytest.fixture(autouse=True)
def _only_one_host(settings: Any) -> None:
    settings.ALLOWED_HOSTS = [HOST]
    settings.SECURE_SSL_REDIRECT = True
    settings.METRICS_TOKEN = METRICS["Authorization"].removeprefix("Bearer ")


@pytest.mark.parametrize("host", ADDRESSES)
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/readyz?postgres=1", "/metrics"])
def test_a_probe_may_name_any_host(production: str, path: str, host: str) -> None:
    answer = Client().get(path, headers={"Host": host, **METRICS})
    assert answer.status_code == 200
    assert host not in answer.content.decode()


def test_a_scraper_without_its_token_is_refused_whatever_host_it_names(production: str) -> None:
    assert Client().get("/metrics", headers={"Host": ADDRESSES[0]}).status_code == 401


@pytest.mark.parametrize("host", ADDRESSES)
@pytest.mark.parametrize(
    "path",
    ["/", "/login", "/healthz/", "/healthz/x", "/metrics/", "/api/v1/environments", "/env/production/readyz"],
)
def test_every_other_path_checks_the_host(production: str, path: str, host: str) -> None:
    for secure in (True, False):
        assert Client().get(path, headers={"Host": host}, secure=secure).status_code == 400
        assert Client().post(path, headers={"Host": host}, secure=secure).status_code == 400


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    (tmp_path / "postgres").mkdir()
    migrated.copy_into(tmp_path / "postgres")
    server = Postgres(tmp_path / "postgres", durable=False)
    server.start()
    yield server
    server.stop()


def test_web_is_ready_without_postgres_while_it_has_something_to_draw(
    tmp_path: Path, postgres: Postgres
) -> None:
    variables = {"DATABASE_URL": postgres.url, "FUSEBOARD_ALLOWED_HOSTS": HOST}
    with web_running(tmp_path, **variables) as processes:
        url = processes.by_name["web"].url

        def status(path: str) -> int:
            return httpx.get(f"{url}{path}", timeout=10.0, trust_env=False).status_code

        assert status("/readyz?postgres=1") == 200
        wait_until(lambda: _draws(url), "the first drawing")
        postgres.stop()
        assert status("/readyz") == 200
        assert status("/readyz?postgres=1") == 503
    with web_running(tmp_path, **variables) as processes:
        url = processes.by_name["web"].url
        # It knows nothing yet.
        assert status("/readyz") == 503
        assert status("/healthz") == 200


def _draws(url: str) -> bool:
    """Without the field ``postgres``, it answers from what it has drawn."""
    return "postgres" not in httpx.get(f"{url}/readyz", timeout=10.0, trust_env=False).json()
