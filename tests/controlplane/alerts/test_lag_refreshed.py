"""Level 1, handled automatically: pods that lag get the configuration again, and the alert says so."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from controlplane.alerts import evaluator
from controlplane.alerts.models import Alert, Evaluation
from controlplane.alerts.state import lag_repair
from controlplane.publishing.models import OutboxEntry
from controlplane.status.facts import Facts
from fuseboard.contract import keys
from fuseboard.contract.sync import decode_nudge
from tests.controlplane.alerts.alert_facts import behind
from tests.controlplane.alerts.test_alert_evaluator import let_pass

pytestmark = pytest.mark.django_db(transaction=True)


def lagging_by(seconds: float) -> Callable[[str], Facts]:
    """The facts of a fleet in which one pod of two lags, at the time of the evaluation."""
    return lambda environment: replace(behind(seconds), environment=environment)


def refreshes(result: str) -> float:
    return float(lag_repair.REFRESHES.labels(result)._value.get())


def test_a_pod_that_lags_is_sent_the_configuration_until_it_has_it(
    production: str, limits: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: Any = limits.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]  # untyped in redis
    heard.subscribe(keys.config_channel(production))
    heard.get_message(timeout=30)
    before = refreshes("ok")
    monkeypatch.setattr(evaluator, "read_facts", lagging_by(12))
    evaluator.evaluate_environment(production)
    message: Any = heard.get_message(timeout=30)
    nudge = decode_nudge(message["data"])
    assert (nudge.since, nudge.tenants) == (0, None), "pods read everything that they lack"
    assert refreshes("ok") == before + 1
    let_pass(15)
    evaluator.evaluate_environment(production)
    assert heard.get_message(timeout=0.1) is None, "it has 20 s to report what it applies"
    detail = Alert.objects.get(key="lag").detail
    assert "The configuration was sent to them again at " in detail
    document = Evaluation.objects.get().measured
    document[lag_repair.FIELD]["at"] -= lag_repair.AGAIN_S
    Evaluation.objects.update(measured=document)
    evaluator.evaluate_environment(production)
    evaluator.evaluate_environment(production)
    assert heard.get_message(timeout=30) is not None
    assert "2 times so far" in Alert.objects.get(key="lag").detail
    monkeypatch.setattr(evaluator, "read_facts", lagging_by(9))
    evaluator.evaluate_environment(production)
    assert lag_repair.FIELD not in Evaluation.objects.get().measured, "the next lag begins again"
    heard.close()


def test_a_refresh_also_publishes_what_redis_lacks(
    production: str, limits: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits.delete(keys.config_head(production))
    OutboxEntry.objects.update(published_at=None)
    monkeypatch.setattr(evaluator, "read_facts", lagging_by(12))
    evaluator.evaluate_environment(production)
    assert limits.exists(keys.config_head(production))
    assert not OutboxEntry.objects.filter(published_at=None).exists()


def test_a_refresh_that_fails_is_said_and_counted_and_stops_no_alert(
    production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise redis.ConnectionError("connection refused")

    failed = refreshes("failed")
    monkeypatch.setattr(lag_repair, "refresh", fail)
    monkeypatch.setattr(evaluator, "read_facts", lagging_by(31))
    evaluator.evaluate_environment(production)
    let_pass(10)
    evaluator.evaluate_environment(production)
    alert = Alert.objects.get(key="lag")
    assert "could not be sent again at" in alert.detail
    assert "connection refused" in alert.detail
    assert refreshes("failed") == failed + 1
