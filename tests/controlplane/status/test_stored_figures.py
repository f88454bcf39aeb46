"""What web exports of the fleet: from the last evaluation of the alerts, and from rows."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from django.test import Client
from django.utils import timezone

from controlplane.alerts.evaluator import evaluate_environment
from controlplane.alerts.models import Alert, Evaluation
from controlplane.editing import edits
from controlplane.fleet.models import Figures, Server
from controlplane.gateway.servers.figures import figures_of
from controlplane.gateway.servers.fleet import Fleet
from controlplane.metrics import FleetCollector
from controlplane.monitoring import stored_figures
from controlplane.policies.models import Tenant, TenantQuota
from controlplane.status.facts import Dependency, Transition
from controlplane.status.incidents import HOUR_S, open_ratio
from controlplane.status.measured import measured
from controlplane.status.status import status_of
from controlplane.usage.budgets import MAX_BUDGETS
from fuseboard.contract import keys
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import Period
from tests.controlplane.alerts.alert_facts import facts, override
from tests.controlplane.alerts.backlog_alert_cases import seen as backlog_seen
from tests.controlplane.gateway.manual_gateway import TurnedClock

NOW = 1_795_144_367.0


def moved(ago: float, before: str, after: str) -> Transition:
    return Transition(dependency="llm", at=NOW - ago, before=before, after=after, cause="")


@pytest.mark.parametrize(
    ("state", "transitions", "share"),
    [
        ("closed", [], 0.0),
        ("open", [], 1.0),
        ("open", [moved(360, "closed", "open")], 0.1),
        ("closed", [moved(360, "half_open", "closed"), moved(720, "open", "half_open")], 0.8),
        ("closed", [moved(0, "open", "closed"), moved(1800, "closed", "open")], 0.5),
        ("open", [moved(2 * HOUR_S, "closed", "open")], 1.0),
        ("closed", [moved(2 * HOUR_S, "open", "closed"), moved(3 * HOUR_S, "closed", "open")], 0.0),
        ("open", [moved(-5, "closed", "open")], 0.0),
    ],
)
def test_the_part_of_the_last_hour_in_which_a_breaker_was_open(
    state: str, transitions: list[Transition], share: float
) -> None:
    assert open_ratio(transitions, state, NOW) == pytest.approx(share)


@pytest.fixture(autouse=True)
def _nothing_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_figures, "_budgets", stored_figures._Budgets())


def exported() -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("fuseboard_"), *(sample.labels[name] for name in sorted(sample.labels))): (
            sample.value
        )
        for family in FleetCollector().collect()
        for sample in family.samples
    }


def pod(name: str, **fields: Any) -> None:
    now = timezone.now()
    usual: dict[str, Any] = {"service": "checkout", "agent_version": "0.2.0", "state": "online"}
    usual |= {"mode": "shared", "epoch": 1, "revision": 10**6, "boot": "b"}
    usual |= dict.fromkeys(("mode_since", "started_at", "last_seen_at", "due_at"), now)
    usual |= {"config_status": "applied", "config_source": "sync"}
    Server.objects.create(environment="production", name=name, **{**usual, **fields})


def test_breakers_lag_and_alerts_are_those_of_the_last_evaluation(production: str) -> None:
    view = {
        "dependency": "openai",
        "state": "open",
        "generation": 4,
        "since": timezone.now().timestamp() - 1800,
    }
    pod("web-1", breakers=[view])
    pod("web-2", breakers=[view], config_status="rejected", agent_version="0.1.0")
    Figures.objects.create(
        environment=production, gateway="g", at=timezone.now(), document={"live_servers": 2}
    )
    evaluate_environment(production)
    found = exported()
    assert found["breaker_state", "openai", "production"] == 1
    ratio = found["breaker_open_1h_ratio", "openai", "production"]
    assert ratio == pytest.approx(0.5, abs=0.01), "its transition is not collected yet"
    assert found["config_rejected_pods", "production"] == 1
    assert found["config_lag_seconds", "production"] >= 0
    assert found["unlimited", "production"] == 0
    assert found["agent_versions", "production", "0.1.0"] == 1
    firing = Alert.objects.filter(key="open:openai").get()
    assert found["alerts", "production", "2", "critical", firing.state] >= 1
    assert found["alerts_evaluated_timestamp_seconds", "production"] > timezone.now().timestamp() - 60
    hold = measured(status_of(facts(override=override("forced_open"))))
    assert hold["breakers"]["payments-api"][0] == 3, "no alert for what an operator did"
    # A worker that stopped must not look like a quiet fleet.
    Evaluation.objects.update(at=timezone.now() - timedelta(minutes=5))
    found = exported()
    assert ("breaker_state", "openai", "production") not in found
    assert ("alerts_evaluated_timestamp_seconds", "production") in found


def test_the_fullest_backlogs_and_those_with_a_problem_have_series(production: str) -> None:
    names = [f"vendor-{number:02}" for number in range(30)]
    some = facts(
        dependencies=tuple(Dependency(name=name) for name in names),
        backlogs=tuple(
            backlog_seen(dependency=name, ready=10 * number, dead=int(name == "vendor-00"))
            for number, name in enumerate(names)
        ),
    )
    Evaluation.objects.create(environment=production, at=timezone.now(), measured=measured(status_of(some)))
    found = {name[1:]: value for name, value in exported().items() if name[0] == "backlog_jobs"}
    assert len(found) == 4 * 16
    assert found["vendor-00", "production", "dead"] == 1
    assert found["vendor-29", "production", "ready"] == 290
    assert ("vendor-01", "production", "ready") not in found
    assert exported()["backlog_used_ratio", "vendor-29", "production"] == 0.29


def test_quotas_at_80_and_100_percent(production: str, limits: Any) -> None:
    acme = Tenant.objects.get(key="acme")
    for name, spent in (("near", 85), ("spent", 120), ("free", 1)):
        TenantQuota.objects.create(
            tenant=acme, name=name, limit=100, window_s=60, algorithm="fixed_window", period="month"
        )
        began, _ = period_around(int(timezone.now().timestamp() * 1_000_000), Period.MONTH, "UTC")
        limits.set(keys.tenant_quota(production, "acme", name), f"{began} {spent}")
    found = exported()
    of = ("quota_used_ratio", "", "production")
    states = {"near": "warn", "spent": "over", "free": "ok"}
    assert {name: found[*of, name, state, "acme", "calls"] for name, state in states.items()} == {
        "near": 0.85,
        "spent": 1.2,
        "free": 0.01,
    }
    assert (found["quotas", "production", "warn"], found["quotas", "production", "over"]) == (1, 1)


def test_a_budget_warns_at_its_own_part(production: str, ada: Any, limits: Any) -> None:
    fields: dict[str, Any] = {"amount": 100, "period": "month", "tenant": "acme", "expected_version": 0}
    common = {"environment": production, "reason": "for a test", "actor": ada}
    began, _ = period_around(int(timezone.now().timestamp() * 1_000_000), Period.MONTH, "UTC")
    for name, warn_percent in (("early", 50), ("never", 0)):
        edits.set_budget(**common, budget=name, warn_percent=warn_percent, **fields)
        limits.set(keys.tenant_budget(production, "acme", name), f"{began} 60")
    states = {name[3]: name[4] for name in exported() if name[0] == "quota_used_ratio"}
    assert (states["budget:early"], states["budget:never"] in ("ok", "will_be_over")) == ("warn", True)


def test_the_certificate_of_web_expires(production: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    end = timezone.now().replace(microsecond=0) + timedelta(days=9)
    certificate = trustme.CA().issue_cert("127.0.0.1", not_after=end)
    for name, pem in (("CERT", certificate.cert_chain_pems[0]), ("KEY", certificate.private_key_pem)):
        pem.write_to_path(str(tmp_path / name))
        monkeypatch.setenv(f"FUSEBOARD_TLS_{name}_FILE", str(tmp_path / name))
    assert exported()["certificate_expiry_timestamp_seconds",] == end.timestamp()


def test_100_000_tenants_and_200_dependencies_stay_below_5000_series(production: str, settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT, settings.METRICS_TOKEN = False, "the token of the scraper"
    acme = Tenant.objects.get(key="acme")
    usual: dict[str, Any] = {"limit": 100, "window_s": 60, "algorithm": "fixed_window", "period": "month"}
    TenantQuota.objects.bulk_create(
        TenantQuota(tenant=acme, name=f"month-{n}", **usual) for n in range(MAX_BUDGETS + 500)
    )
    # What a gateway writes of 100,000 tenants that its pods report.
    fleet = Fleet(production, TurnedClock(), beat_ms=5_000, beats_per_s=2_000)
    fleet.sums.totals.milli |= {("tenant_requests", f"t-{number}"): 2_000 for number in range(100_000)}
    fleet.sums.totals.milli |= {("rule_asked", f"rule\x1ft-{number}"): 2_000 for number in range(100_000)}
    fleet.sums.totals.milli["requests", ""] = 200_000_000
    document = figures_of(fleet)
    # Fresh for as long as this test takes.
    at = timezone.now() + timedelta(minutes=5)
    Figures.objects.create(environment=production, gateway="g", at=at, document=document)
    breakers = {f"vendor-{number}": [1, 0.5] for number in range(300)}
    Evaluation.objects.create(
        environment=production,
        at=at,
        measured={"lag_s": 0, "rejected": 0, "unlimited": False, "breakers": breakers},
    )
    for number in range(60):
        pod(f"web-{number}", agent_version=f"0.{number}")
    answer = Client().get("/metrics", headers={"Authorization": "Bearer the token of the scraper"})
    lines = [line for line in answer.content.decode().splitlines() if not line.startswith("#")]
    assert 400 < len(lines) < 5_000
    found = exported()
    assert found["tenant_requests_per_second", "production", "other"] == 200_000 - 20 * 2
    assert found["agent_versions", "production", "other"] == 40
    assert found["quotas", "production", "ok"] == MAX_BUDGETS
