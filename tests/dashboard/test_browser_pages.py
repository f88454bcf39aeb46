"""Every page on a phone: axe-core finds no violation, nothing overflows, and everything has a name."""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from fleet_rows import breaker, put_server
from refused_samples import FIRST, put_samples

from tests.agents.backlog_scripts import BacklogStore
from tests.dashboard.test_alerts_page import alert
from tests.dashboard.test_incident_pages import incident
from tests.dashboard.test_weekly_page import LINE, PLAIN, SECTION
from tests.people import ADA, BOB, OLGA, PASSWORD

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

_ROOT = Path(__file__).resolve().parents[2]
AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
PAGES = {
    "overview": "/",
    "breakers": "/breakers",
    "breaker": "/breakers/payments-api",
    "breaker_history": "/breakers/payments-api/history",
    "dependency": "/breakers/payments-api/settings",
    "pod_protection": "/protection",
    "servers": "/servers",
    "server": "/servers/web-1",
    "tenants": "/tenants",
    "tenant": "/tenant?key=acme-retail&quota=requests",
    "defaults": "/defaults",
    "effective": "/tenant/effective?key=acme-retail",
    "bulk": "/tenants/bulk",
    "templates": "/templates",
    "template": "/templates/of/contract",
    "vendor_accounts": "/accounts",
    "vendor_account": "/accounts/of/openai-main",
    "decline_suggestion": "/breakers/payments-api/suggestions/contract/limit",
    "add_money_budget": "/budgets/money/new?account=openai-main",
    "money_budget": "/budgets/of/openai-main-month",
    "models": "/models",
    "model": "/models/of/gpt-5.2",
    "reprice": "/models/of/gpt-5.2/reprice",
    "tiers": "/tiers",
    "edit_freeze": "/edit-freeze",
    "error_budgets": "/error-budgets",
    "new_dependency": "/dependencies/new",
    "backlogs": "/backlogs",
    "backlog": "/backlogs/payments-api",
    "bulkheads": "/bulkheads",
    "retries": "/retries",
    "locks": "/locks",
    "open_selected": "/overrides/open?b=payments-api&b=search",
    "clear_counter": "/limits/clear",
    "limits": "/limits",
    "help": "/help",
    "hot_keys": "/hot-keys",
    "reconciliation": "/reconciliation",
    "weekly": "/weekly-summary",
    "alert_rules": "/alerts/rules?edit=429",
    "costs": "/costs",
    "invoices": "/costs/invoices",
    "budgets": "/budgets",
    "add_budget": "/budgets/new",
    "edit": "/edit/tier?key=pro",
    "changes": "/changes",
    "revisions": "/revisions",
    "revision": "/revisions/2",
    "revert": "/revisions/2/revert",
    "import": "/import",
    "requests": "/requests",
    "request": "/requests/4711",
    "schedules": "/schedules",
    "alerts": "/alerts",
    "alert": "/alerts/4713",
    "routes": "/alerts/routes?rule=open",
    "mutes": "/alerts/mutes",
    "incidents": "/incidents",
    "incident": "/incidents/4712",
    "incident_report": "/incidents/4712/report",
    "receivers": "/alerts/receivers",
    "audit": "/audit",
    "explain": "/explain",
    "explain_sample": f"/explain/{FIRST}",
    "refusals": "/refusals",
    "erase": "/refusals/erase",
    "runbooks": "/runbooks",
    "saved_views": "/views",
    "runbook": "/runbooks/payment-provider-timeouts",
    "new_runbook": "/runbooks/new",
    "edit_runbook": "/runbooks/payment-provider-timeouts/edit",
    "runbook_revisions": "/runbooks/redis-slow/revisions?revision=1",
    "drills": "/drills",
    "people": "/people",
    "person": "/people/olga",
    "tokens": "/tokens",
    "account": "/account",
    "account_change_password": "/account/password",
    "mfa_activate_totp": "/account/second-factor",
}
#: Addresses that are no page, or that only an action leads to; the tests of those actions look at them.
NO_PAGES = {
    *(
        "breaker_preview",
        "breaker_runbook",
        "bulk_preview",
        "dependency_preview",
        "new_dependency_groups",
        "new_dependency_preview",
        "edit_preview",
        "edit_replay",
        "request_replay",
        "first_token",
        "rollout",
        "undo",
        "pod_protection_preview",
        "template_preview",
        "make_model",
        "make_vendor_account",
        "make_template",
        "audit_export",
        "export",
        "forget_pod",
        "incident_file",
        "incident_now",
        "weekly_file",
        "runbook_now",
        "preview_runbook",
        "change_runbook",
        "shared_report",
        "lift_freeze",
        "share_idle_slots",
        "palette",
        "totp_picture",
        "vendor_limits",
    ),
    *("draft", "welcome", "login", "logout", "account_inactive", "account_signup"),
    *("openid_connect_login", "openid_connect_callback", "socialaccount_signup"),
    *("socialaccount_login_cancelled", "account_set_password", "account_reauthenticate"),
    *("mfa_authenticate", "mfa_reauthenticate", "mfa_deactivate_totp"),
    *("mfa_view_recovery_codes", "mfa_generate_recovery_codes"),
    *("account_login", "account_logout", "mfa_index", "socialaccount_connections"),
}
FAULTS = """(rules) =>
  axe.run(document, {resultTypes: ["violations"], iframes: false, preload: false, ...rules}).then(found =>
    found.violations.flatMap(v => v.nodes.map(n => `${v.id}: ${n.target.join(" ")}: ${n.html}`)))"""
WIDE = """[
  ...[...document.querySelectorAll(".scroll:has(table)")]
    .filter(box => box.scrollWidth > box.clientWidth + 1)
    .map(box => [box.closest("section")?.querySelector("h2")?.textContent.trim(), box])
    .map(([title, box]) => [title, box.scrollWidth - box.clientWidth])
    .map(([title, beyond]) => `${title}: ${beyond} px`),
  ...(document.documentElement.scrollWidth > innerWidth ? ["the page"] : [])]"""
#: What a page states by colour alone, which the colours of the system hide: a text without another sign, a
#: row or a notice without a sign in it, a shape in the colour of the page, a choice without a background.
COLOURLESS = """() => {
  const all = selector => [...document.querySelectorAll(selector)].filter(e => e.getClientRects().length);
  const style = (e, pseudo) => getComputedStyle(e, pseudo);
  const bold = e => parseInt(style(e).fontWeight) >= 600;
  const marked = e => bold(e) || style(e).textDecorationLine !== "none"
    || !["none", "normal"].includes(style(e, "::before").content) || e.querySelector("svg");
  const signs = "svg, b, strong, .hot, .st-word, .strong, .t";
  const page = style(document.body).backgroundColor, none = ["none", "rgba(0, 0, 0, 0)", page];
  const drawn = e => [style(e).fill, style(e).stroke].some(paint => !none.includes(paint));
  const lost = [
    ...all(".hot, .st-word, .kpi.over .why, .verdict h1 em, .state, .err, .was, .lines > :is(ins, del)")
      .filter(e => e.textContent.trim() && !marked(e)),
    ...all(":is(.st-open, .st-half, .st-forced, .st-warn):not(.chip)")
      .filter(e => !e.closest("svg") && e.textContent.trim() && !marked(e) && !e.querySelector(signs)),
    ...all(".bar-fg, .bar-st, .tick-bad, .tick-slow, .ring-arc, .ring-disc, .fleet [class*=s-], .seg-open")
      .filter(e => !drawn(e)),
    ...all(".chip[aria-pressed=true], .chip[aria-current], .seg label:has(:checked)")
      .filter(e => none.includes(style(e).backgroundColor)),
  ];
  return lost.map(e => e.outerHTML.slice(0, 120));
}"""
#: A finger hits what is 24 pixels tall and wide, or has as much room (WCAG 2.5.8). Axe leaves it out.
TARGETS = {"rules": {"target-size": {"enabled": True}}}
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}


def put_backlog(limits: Any) -> None:
    """Waiting jobs, and a dead one."""
    import time

    from controlplane.backlogs.collect import measure_backlogs

    now_us = time.time_ns() // 1000 - 90_000_000
    jobs = BacklogStore(limits, environment="production", dependency="payments-api", now_us=now_us)
    for number in range(12):
        jobs.submit(f"charge-of-a-very-long-order-number-{number:020}", max_tries=1)
    (job,) = jobs.take(1).jobs
    jobs.end(job["id"], job["fence"], "dead", cause="Undeliverable: the card was refused by its bank")
    measure_backlogs("production")


def put_suggestions() -> None:
    """A limit of a vendor that states less, and of which others use a part, which was declined."""
    from controlplane.editing import edits
    from controlplane.policies.models import Dependency
    from controlplane.suggestions.edits import decline_suggestion, look_for_suggestions

    values = {"limit": 900, "window_s": 60, "algorithm": "sliding_window"}
    edits.set_vendor_limit(
        environment="production",
        dependency="payments-api",
        name="contract",
        expected_version=Dependency.objects.get(name="payments-api").version,
        reason="CHG-4822 a new contract",
        actor=BOB,
        **values,
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


@pytest.fixture
def something_everywhere(production: Any, limits: Any) -> None:
    """A row for each list that is empty otherwise, so that its table and its buttons are on the page."""
    import time
    from datetime import UTC, date, datetime, timedelta

    from django.db import connection

    from controlplane.accounts.saved_views import save_view
    from controlplane.alerts.delivery.receivers import add_receiver
    from controlplane.alerts.incidents.edits import add_note
    from controlplane.alerts.people.mute_edits import MuteValues, add_mute
    from controlplane.approvals.proposals import Proposed
    from controlplane.approvals.rules import set_approvals
    from controlplane.breakers.overrides import override_breaker
    from controlplane.editing import edits
    from controlplane.fleet.models import FailedCalls
    from controlplane.runbooks.shipped import shipped
    from controlplane.weekly.models import WeeklySummary
    from fuseboard.contract.words import OverrideMode

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
    common = {"environment": "production", "reason": "CHG-4822 a new contract"}
    put_samples()
    save_view(
        environment="production",
        name="Refused",
        page="tenants",
        query={"tier": "pro"},
        shared=True,
        actor=ADA,
    )
    add_receiver(
        name="on-call",
        url="https://192.0.2.7/alerts",
        least_level=2,
        least_severity="warning",
        weekly=True,
        actor=ADA,
        **common,
    )
    WeeklySummary.objects.create(
        environment="production",
        begins=date(2026, 5, 4),
        sections=[SECTION | {"lines": [LINE, LINE | PLAIN | {"name": "a-long-name", "opens": "alerts"}]}],
    )
    add_mute(values=MuteValues(dependency="search"), actor=OLGA, **common)
    values = {"limit": 100, "window_s": 60, "burst": 20}
    edits.set_template(template="contract", expected_version=0, actor=BOB, **values, **common)
    prices = {
        "2025-12-01": {"input": 2_500_000, "output": 10_000_000},
        "2099-01-01": {
            "input": 2_000_000,
            "output": 8_000_000,
            "long_above": 9,
            "long_input": 1,
            "long_output": 2,
        },
    }
    account = {"pools": ["payments-api"], "hosts": ["api.openai.com"]}
    edits.set_account(account="openai-main", expected_version=0, actor=BOB, **account, **common)
    budget = {"account": "openai-main", "amount": 50_000_000_000, "period": "month"}
    edits.set_budget(budget="openai-main-month", expected_version=0, actor=BOB, **budget, **common)
    more = {"amount": 60_000_000_000, "minutes": 60, "expected_version": None}
    edits.raise_budget(budget="openai-main-month", actor=BOB, **more, **common)
    model = {"aliases": ["assistant-large"], "pool": "payments-api", "prices": prices}
    edits.set_model(model="gpt-5.2", expected_version=0, actor=BOB, **model, **common)
    edits.set_model(model="gpt-unpriced", expected_version=0, actor=BOB, **common)
    put_suggestions()
    slow = shipped()["redis-slow"]
    text = {"title": slow.title, "body": slow.body + "\nCall Priya.\n", "reason": "for a test"}
    edits.save_runbook(runbook="redis-slow", actor=BOB, **text)
    set_approvals(needed=1, actor=BOB, **common)
    at = datetime.now(UTC).timestamp()
    alert("429", pk=4713, points=[[at - 60, 0.001], [at, 0.03]], turns=[[at - 60, "pending"], [at, "firing"]])
    incident(number=4712, acknowledged_by="olga", acknowledged_at=datetime.now(UTC))
    add_note(environment="production", number=4712, text="The vendor confirms an outage", actor=OLGA)
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval('approvals_changerequest_id_seq', 4710)")
    with pytest.raises(Proposed):
        edits.change_tier(tenant="acme-retail", tier="enterprise", expected_version=None, actor=BOB, **common)
    put_backlog(limits)
    override_breaker(
        environment="production",
        dependency="payments-api",
        mode=OverrideMode.FORCED_OPEN,
        reason="CHG-4821 vendor maintenance",
        expires_at=datetime.now(UTC) + timedelta(hours=1),
        actor=OLGA,
    )


def test_every_page_is_listed_here():
    from dashboard.urls import urlpatterns

    named = {str(p.name) for entry in urlpatterns for p in getattr(entry, "url_patterns", [entry])}
    assert named == PAGES.keys() | NO_PAGES


@pytest.fixture
def screenshots():
    """The tool that photographs each page."""
    spec = importlib.util.spec_from_file_location("screenshots", _ROOT / "tools/screenshots.py")
    assert spec
    assert spec.loader
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_screenshots_show_every_page(screenshots):
    assert PAGES.keys() - screenshots.PAGES.keys() == set()


def test_screenshots_find_each_page_and_fail_without_one(
    chromium, web, client, screenshots, something_everywhere, tmp_path
):
    """The links that the tool followed matched nothing, and it said so only in a line among others."""
    from django.core.files.uploadedfile import SimpleUploadedFile

    from controlplane.accounts.models import User

    client.force_login(User.objects.get(username="ada"))
    plan = SimpleUploadedFile("contracts.yaml", b"tenants:\n  globex:\n    tier: pro\n")
    assert client.post("/import", {"file": plan}).status_code == 302
    linked = [name for name, target in screenshots.PAGES.items() if not isinstance(target, str)]
    given = argparse.Namespace(
        url=web,
        name="ada",
        password=PASSWORD,
        out=tmp_path,
        only=[*linked, "receivers"],
        themes=["dark"],
        widths=[390],
        patience=0,
    )
    assert screenshots._photograph_all(chromium, given) == []
    assert {file.stem for file in tmp_path.iterdir()} == {f"{name}-dark-390" for name in given.only}
    screenshots.PAGES["nowhere"] = ("/tiers", "a[href='/no-such-page']")
    given.only = ["nowhere"]
    (missed,) = screenshots._photograph_all(chromium, given)
    assert missed.startswith("nowhere: nothing to show on")


@pytest.mark.timeout(600)  # it opens every page
def test_every_page_fits_a_phone_and_is_accessible(page, sign_in, something_everywhere):
    """Rows of a table never scroll sideways; only the timeline of a breaker does."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/login")
    faults = looked_at(page, "login")
    sign_in("ada")
    for name, path in PAGES.items():
        answer = page.goto(path, wait_until="domcontentloaded")
        if "/account/again" in page.url:
            page.fill("#id_password", PASSWORD)
            page.click("button[type=submit]")
        assert answer.status == 200, path
        faults += looked_at(page, name) + too_wide(page, name)
        if name == "overview":
            assert page.is_visible("#held a:has-text('Extend')")
        if name == "incident_report":
            page.click("text=Make link")
            faults += looked_at(page, "incident_report with a link")
            page.goto(page.inner_text("code.secret"))
            faults += looked_at(page, "shared_report")
    assert faults == [], "\n".join(faults)


def too_wide(page: Any, name: str) -> list[str]:
    """What scrolls sideways, also on the smallest phone."""
    faults = []
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 844})
        faults += [f"{name} at {width} px: {wide}" for wide in page.evaluate(WIDE)]
    page.set_viewport_size({"width": 390, "height": 844})
    return faults


def looked_at(page: Any, name: str) -> list[str]:
    """What is wrong with a page in both themes and in forced colours; the fixture checks the console."""
    faults = []
    beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    if beyond > 0:
        faults.append(f"{name} sticks out by {beyond} px")
    page.evaluate(AXE)
    faults += [f"{name}, dark: {fault}" for fault in page.evaluate(FAULTS, TARGETS)]
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    faults += [f"{name}, light: {fault}" for fault in page.evaluate(FAULTS, CONTRAST)]
    page.emulate_media(forced_colors="active")
    faults += [f"{name}, stated by colour: {lost}" for lost in page.evaluate(COLOURLESS)]
    page.emulate_media(forced_colors="none")
    return faults
