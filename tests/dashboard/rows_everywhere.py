"""A row for each list that is empty otherwise, so that its table and its buttons are on its page."""

import time
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from fleet_rows import breaker, put_asked, put_server
from refused_samples import put_samples

from controlplane.accounts.saved_views import save_view
from controlplane.alerts.delivery.receivers import add_receiver
from controlplane.alerts.incidents.edits import add_note
from controlplane.alerts.people.mute_edits import MuteValues, add_mute
from controlplane.approvals.proposals import Proposed
from controlplane.approvals.rules import set_approvals
from controlplane.backlogs.collect import measure_backlogs
from controlplane.breakers.overrides import override_breaker
from controlplane.editing import edits
from controlplane.fleet.models import FailedCalls
from controlplane.ledger.invoices import months_to_enter, set_invoice
from controlplane.policies.models import Dependency
from controlplane.runbooks.shipped import shipped
from controlplane.spending.models import Account, Budget
from controlplane.suggestions.edits import decline_suggestion, look_for_suggestions
from controlplane.weekly.models import WeeklySummary
from fuseboard.contract.words import OverrideMode
from tests.agents.backlog_scripts import BacklogStore
from tests.controlplane.ledger.ledger_rows import put_day, put_hour, today
from tests.dashboard.test_alerts_page import alert
from tests.dashboard.test_incident_pages import incident
from tests.dashboard.test_weekly_page import LINE, PLAIN, SECTION
from tests.people import ADA, BOB, OLGA

#: With a long line, and a note about a difference from envoyproxy/ratelimit.
_RULES = """domain: edge
descriptors:
  - key: tenant
    means: tenant
    descriptors:
      - {key: a-long-key-of-a-descriptor-that-names-the-address, means: ip}
  - {key: destination_cluster, value: "outbound|443||api.example.com", dependency: payments-api}
  - key: generic_key
    value: slow-path
    rate_limit: {unit: week, requests_per_unit: 1000000, name: slow}
    shadow_mode: true
"""
_WHY: dict[str, Any] = {"environment": "production", "reason": "CHG-4822 a new contract"}


def put_something_everywhere(limits: Any) -> None:
    _put_pod()
    put_samples()
    _put_things_of_people()
    edits.set_template(
        template="contract", limit=100, window_s=60, burst=20, expected_version=0, actor=BOB, **_WHY
    )
    edits.set_descriptors(domain="edge", file=_RULES, expected_version=0, actor=BOB, **_WHY)
    unmatched = ["user_agent > path", 90, ["curl > /v1/{id}", "a > /"]]
    put_asked("edge", {"tenant": [41_200, 380, 0]}, unmatched, pods={"web-1": 41_290})
    put_asked("egde", {}, ["a-long-key-without-a-rule-of-any-domain > path", 7, ["x > /"]])
    _put_spending()
    put_suggestions()
    _put_runbook()
    set_approvals(needed=1, actor=BOB, **_WHY)
    _put_alerts()
    _put_request()
    _put_backlog(limits)
    override_breaker(
        environment="production",
        dependency="payments-api",
        mode=OverrideMode.FORCED_OPEN,
        reason="CHG-4821 vendor maintenance",
        expires_at=datetime.now(UTC) + timedelta(hours=1),
        actor=OLGA,
    )


def _put_pod() -> None:
    """A pod with locks, and failed calls."""
    seen = [breaker("payments-api"), breaker("search", "open", local=True)]
    now, trace = time.time(), "4bf92f3577b34da6a3ce929d0e0e4736"
    primitives = {
        "locks": {"acquired": 41, "waited": 3, "waited_ms": 90, "taken": 2, "lost": 1, "unavailable": 4},
        "once": {"begun": 1200, "replayed": 12, "lost": 1},
        "holding": 3,
        "longest_since": now - 400,
        "held": [["nightly-report-of-" + "a-long-name-" * 4, now - 400], ["export", now - 2]],
    }
    put_server("web-1", token="abc123", address="10.1.2.3", breakers=seen, primitives=primitives)
    failures = [
        [now - 3, "web-1", "boot-000", 8, "HTTP 503", "failure", trace],
        [now - 9, "web-2", "boot-000", 3, "slow", "slow", ""],
    ]
    kinds = [[now - 300, {"HTTP 503": 30, "timeout": 9, "slow": 1}]]
    document = {"since": now - 7200, "calls": failures, "kinds": kinds}
    FailedCalls.objects.create(
        gateway="g1", environment="production", dependency="payments-api", document=document
    )


def _put_things_of_people() -> None:
    """A shared view, a receiver, a weekly summary, and a mute."""
    query = {"tier": "pro"}
    save_view(environment="production", name="Refused", page="tenants", query=query, shared=True, actor=ADA)
    add_receiver(
        name="on-call",
        url="https://192.0.2.7/alerts",
        least_level=2,
        least_severity="warning",
        weekly=True,
        actor=ADA,
        **_WHY,
    )
    WeeklySummary.objects.create(
        environment="production",
        begins=date(2026, 5, 4),
        sections=[SECTION | {"lines": [LINE, LINE | PLAIN | {"name": "a-long-name", "opens": "alerts"}]}],
    )
    add_mute(values=MuteValues(dependency="search"), actor=OLGA, **_WHY)


def _put_spending() -> None:
    """An account with an invoice and budgets, one of them raised; a model with prices, and one without."""
    # It is older than all revisions: its budgets have all calls of its pool.
    Account.objects.create(
        environment_id="production", name="openai-main", pools=["payments-api"], hosts=["api.openai.com"]
    )
    budget = {"account": "openai-main", "amount": 50_000_000_000, "period": "month"}
    edits.set_budget(budget="openai-main-month", expected_version=0, actor=BOB, **budget, **_WHY)
    more = {"amount": 60_000_000_000, "minutes": 60, "expected_version": None}
    edits.raise_budget(budget="openai-main-month", actor=BOB, **more, **_WHY)
    long = {"long_above": 9, "long_input": 1, "long_output": 2}
    prices = {
        "2025-12-01": {"input": 2_500_000, "output": 10_000_000},
        "2099-01-01": {"input": 2_000_000, "output": 8_000_000, **long},
    }
    model = {"aliases": ["assistant-large"], "pool": "payments-api", "prices": prices}
    edits.set_model(model="gpt-5.2", expected_version=0, actor=BOB, **model, **_WHY)
    edits.set_model(model="gpt-unpriced", expected_version=0, actor=BOB, **_WHY)
    Budget.objects.create(
        environment_id="production", name="openai-main-day", account="openai-main", amount=9, period="day"
    )
    put_hour(datetime.now(UTC), dependency="payments-api", fresh=1_000_000, micro_usd=1_000_000)
    put_day(today(), dependency="payments-api", fresh=1_000_000, micro_usd=1_000_000)
    set_invoice(account="openai-main", month=months_to_enter()[0], micro_usd=98_000_000, actor=BOB, **_WHY)


def put_suggestions() -> None:
    """A limit of a vendor that states less, and of which others use a part, which was declined."""
    values = {"limit": 900, "window_s": 60, "algorithm": "sliding_window"}
    edits.set_vendor_limit(
        dependency="payments-api",
        name="contract",
        expected_version=Dependency.objects.get(name="payments-api").version,
        actor=BOB,
        **values,
        **_WHY,
    )
    seen = ["payments-api", "contract", 600, 700, 500, 1_700_000_000, 40, 200, 9, 3, 1_200]
    for name in ("web-2", "web-3"):
        put_server(name, seen=[seen])
    look_for_suggestions()
    decline_suggestion(
        environment="production",
        dependency="payments-api",
        limit="contract",
        kind="others",
        reason="The batch of the partner ends in May.",
        actor=BOB,
    )


def _put_runbook() -> None:
    slow = shipped()["redis-slow"]
    text = {"title": slow.title, "body": slow.body + "\nCall Priya.\n", "reason": "for a test"}
    edits.save_runbook(runbook="redis-slow", actor=BOB, **text)


def _put_alerts() -> None:
    """Alert 4713, and incident 4712 with a note."""
    at = datetime.now(UTC).timestamp()
    alert("429", pk=4713, points=[[at - 60, 0.001], [at, 0.03]], turns=[[at - 60, "pending"], [at, "firing"]])
    incident(number=4712, acknowledged_by="olga", acknowledged_at=datetime.now(UTC))
    add_note(environment="production", number=4712, text="The vendor confirms an outage", actor=OLGA)


def _put_request() -> None:
    """Change request 4711."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval('approvals_changerequest_id_seq', 4710)")
    with pytest.raises(Proposed):
        edits.change_tier(tenant="acme-retail", tier="enterprise", expected_version=None, actor=BOB, **_WHY)


def _put_backlog(limits: Any) -> None:
    """Waiting jobs, and a dead one."""
    now_us = time.time_ns() // 1000 - 90_000_000
    jobs = BacklogStore(limits, environment="production", dependency="payments-api", now_us=now_us)
    for number in range(12):
        jobs.submit(f"charge-of-a-very-long-order-number-{number:020}", max_tries=1)
    (job,) = jobs.take(1).jobs
    jobs.end(job["id"], job["fence"], "dead", cause="Undeliverable: the card was refused by its bank")
    measure_backlogs("production")
