"""Every page on a phone: axe-core finds no violation, nothing overflows, and everything has a name."""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from refused_samples import FIRST

from tests.people import PASSWORD

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
    "envoy": "/envoy",
    "envoy_domain": "/envoy/of/edge",
    "new_envoy_domain": "/envoy/new",
    "edit_envoy_domain": "/envoy/edit/edge",
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
        "preview_envoy_domain",
        "envoy_file",
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
#: One page of each kind. A desk shows what a phone leaves out.
SEEN_WIDE = ("overview", "breaker", "tenant", "edit", "costs")
#: A finger hits what is 24 pixels tall and wide, or has as much room (WCAG 2.5.8). Axe leaves it out.
TARGETS = {"rules": {"target-size": {"enabled": True}}}
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}


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
    # The suggestions of the tests are about another vendor than those of the demo.
    screenshots.PAGES["pool"] = PAGES["breaker"]
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
        if name in SEEN_WIDE:
            page.set_viewport_size({"width": 1440, "height": 900})
            faults += looked_at(page, f"{name} at 1440 px")
            page.set_viewport_size({"width": 390, "height": 844})
        if name == "overview":
            assert page.is_visible("#held a:has-text('Extend')")
        if name == "reprice":
            page.click("button[value=preview]")
            page.wait_for_selector("text=Budget openai-main-day")
            faults += looked_at(page, "reprice with sums") + too_wide(page, "reprice with sums")
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
