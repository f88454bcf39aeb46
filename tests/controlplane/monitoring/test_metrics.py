"""What a web process exposes to Prometheus, and who may read it."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from controlplane.accounts.tokens import create_api_token
from controlplane.editing import edits
from tests.controlplane.calling import send, token_of
from tests.people import ADA, SEED, create_person

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


def scraper(role: str, environment: str = "", owner: Any = SEED) -> str:
    return create_api_token(
        name=f"{role} of {environment}",
        role=role,
        environment=environment,
        expires_at=timezone.now() + timedelta(days=1),
        reason="for a test",
        actor=owner,
    )


def environments_seen(text: str) -> set[str]:
    answer = Client().get("/metrics", headers={"Authorization": f"Bearer {text}"})
    assert answer.status_code == 200
    samples = [
        sample
        for family in text_string_to_metric_families(answer.content.decode())
        for sample in family.samples
    ]
    assert any(sample.name == "process_resident_memory_bytes" for sample in samples)
    seen = {sample.labels["environment"] for sample in samples if "environment" in sample.labels}
    if {"production", "staging"} - seen:
        sums = {"fuseboard_outbox_waiting", "fuseboard_logins"}
        assert not sums & {sample.name for sample in samples}, "sums over all environments"
    return seen & {"production", "staging"}


@pytest.fixture
def staging(production: str) -> None:
    edits.create_environment(environment="staging", reason="for a test", actor=SEED)


@pytest.mark.parametrize("role", ["viewer", "admin", "metrics"])
def test_finding_12_metrics_show_one_environment_to_a_token_of_one(staging: None, role: str) -> None:
    assert environments_seen(scraper(role, "staging")) == {"staging"}
    assert environments_seen(scraper(role, "production")) == {"production"}
    assert environments_seen(scraper(role)) == {"production", "staging"}


def test_finding_12_metrics_show_what_the_owner_of_the_token_may_view(staging: None) -> None:
    person = create_person("ada")
    text = scraper("metrics", owner=ADA)
    assert environments_seen(text) == {"production", "staging"}
    person.environment_roles = {"production": ""}
    person.save()
    assert environments_seen(text) == {"staging"}
    person.is_active = False
    person.save()
    refused = Client().get("/metrics", headers={"Authorization": f"Bearer {text}"})
    assert refused.status_code == 401


def test_a_token_of_metrics_opens_nothing_else(staging: None) -> None:
    text = scraper("metrics")
    paths = ("/api/v1/production/tiers", "/api/v1/production/audit", "/api/v1/people")
    for path in (*paths, "/api/v1/docs", "/api/v1/openapi.json"):
        assert send(text, "GET", path).status_code == 403, path
    assert send(token_of("viewer"), "GET", "/api/v1/openapi.json").status_code == 200
