"""What a web process exposes to Prometheus, and who may read it."""

from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from controlplane.accounts.tokens import create_api_token
from tests.people import SEED, create_person

TOKEN = {"Authorization": "Bearer the token of the scraper"}


@pytest.fixture(autouse=True)
def _settings(settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = False
    settings.METRICS_TOKEN = "the token of the scraper"


def scrape() -> dict[tuple[str, ...], float]:
    answer = Client().get("/metrics", headers=TOKEN)
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.content.decode())
        for sample in family.samples
    }


def test_metrics_describe_the_whole_system(production: str) -> None:
    Client().get("/healthz")
    found = scrape()
    assert found["fuseboard_postgres_up",] == 1
    assert found["fuseboard_revision", "production"] >= 3
    assert found["fuseboard_outbox_waiting",] == 0
    assert found["fuseboard_web_requests_total", "200", "healthz"] >= 1
    assert ("process_resident_memory_bytes",) in found


def test_labels_never_contain_user_input(production: str) -> None:
    for path in ("/no/such/page", "/api/v1/production/tenants/mallory", "/breakers/mallory"):
        Client().get(path)
    assert not any("mallory" in label for labels in scrape() for label in labels)


@pytest.mark.parametrize(
    "sent", ["", "Bearer", "Bearer wrong", "Basic the token of the scraper", "Bearer fb_x_y"]
)
def test_metrics_need_a_token(production: str, sent: str) -> None:
    browser = Client()
    browser.force_login(create_person("ada"))
    answer = browser.get("/metrics", headers={"Authorization": sent} if sent else {})
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")


def test_an_api_token_opens_metrics(production: str) -> None:
    from datetime import timedelta

    from django.utils import timezone

    text = create_api_token(
        name="prometheus",
        role="viewer",
        expires_at=timezone.now() + timedelta(days=1),
        reason="for a test",
        actor=SEED,
    )
    assert Client().get("/metrics", headers={"Authorization": f"Bearer {text}"}).status_code == 200


def test_metrics_answer_without_postgres(transactional_db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused")

    connection.close()
    with monkeypatch.context() as outage:
        outage.setattr(connection, "connect", refuse)
        found = scrape()
    assert found["fuseboard_postgres_up",] == 0
    assert ("process_resident_memory_bytes",) in found
