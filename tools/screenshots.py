"""Pictures of every page of a demo, dark and light, for a desktop, a wall display and a phone.

``make screenshots`` starts a demo, gives every list an entry, and stops the demo afterwards. With
``PASSWORD``, it photographs the demo that runs already, and changes nothing. Look at the pictures one by
one: no test sees what looks wrong. They are in ``test-results/screenshots``. It fails if a page could not be
photographed, and names the page.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Error, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
CHROMIUMS = tuple(
    f"/usr/bin/{name}"
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
)
HEIGHTS = {1440: 900, 1920: 1080, 390: 844, 320: 640}

#: Name of its URL -> path; or the page with a link to it, and that link.
PAGES: dict[str, str | tuple[str, str]] = {
    "overview": "/",
    "breakers": "/breakers",
    "breaker": "/breakers/payments-api",
    "breaker_history": "/breakers/payments-api/history",
    "dependency": "/breakers/payments-api/settings",
    "pool": "/breakers/openai-mini",
    "decline_suggestion": ("pool", ".offer a[href*='/suggestions/']"),
    "pod_protection": "/protection",
    "servers": "/servers",
    "server": ("/servers", "#rows a[href^='/servers/']"),
    "tenants": "/tenants",
    "tenant": ("/tenants", "tbody a[href^='/tenant?']"),
    "defaults": "/defaults",
    "effective": ("tenant", "a[href*=effective]"),
    "bulk": "/tenants/bulk",
    "clear_counter": "/limits/clear",
    "templates": "/templates",
    "template": ("/templates", "tbody a[href^='/templates/of/']"),
    "models": "/models",
    "model": ("/models", "tbody a[href^='/models/of/']"),
    "reprice": ("model", "a[href$='/reprice']"),
    "reprice_preview": "/models/of/gpt-5.2/reprice",
    "vendor_accounts": "/accounts",
    "vendor_account": ("/accounts", "tbody a[href^='/accounts/of/']"),
    "add_money_budget": "/budgets/money/new?account=openai-main",
    "money_budget": ("/accounts", "tbody a[href^='/budgets/of/']"),
    "envoy": "/envoy",
    "envoy_domain": ("/envoy", "tbody a[href^='/envoy/of/']"),
    "edit_envoy_domain": ("envoy_domain", "a[href^='/envoy/edit/']"),
    "new_envoy_domain": "/envoy/new",
    "tiers": "/tiers",
    "edit": ("/tiers", "tbody a[href^='/edit/tier']"),
    "edit_freeze": "/edit-freeze",
    "backlogs": "/backlogs",
    "backlog": "/backlogs/payments-api",
    "bulkheads": "/bulkheads",
    "retries": "/retries",
    "locks": "/locks",
    "open_selected": "/overrides/open?b=payments-api&b=search",
    "limits": "/limits",
    "alert": ("/alerts", "a:has-text('Chart')"),
    "error_budgets": "/error-budgets",
    "new_dependency": "/dependencies/new",
    "help": "/help",
    "hot_keys": "/hot-keys",
    "reconciliation": "/reconciliation",
    "costs": "/costs",
    "invoices": "/costs/invoices",
    "correct_invoice": ("/costs/invoices", "tbody a[href*='&month=']"),
    "budgets": "/budgets",
    "add_budget": "/budgets/new",
    "changes": "/changes",
    "revisions": "/revisions",
    "revision": ("/revisions?only=changes", "tbody a[href^='/revisions/']:not([href*='/revert'])"),
    "revert": ("/revisions?only=changes", "tbody a[href$='/revert']"),
    "import": "/import",
    "draft": ("/import", "tbody a[href^='/import/']"),
    "saved_views": "/views",
    "requests": "/requests",
    "request": ("/requests", "tbody a[href^='/requests/']"),
    "schedules": "/schedules",
    "alerts": "/alerts",
    "routes": "/alerts/routes?rule=open",
    "mutes": "/alerts/mutes",
    "alert_rules": "/alerts/rules?edit=429",
    "weekly": "/weekly-summary",
    "incidents": "/incidents",
    "incident": ("/incidents", "tbody a[href^='/incidents/']"),
    "incident_report": ("incident", "a[href$=report]"),
    "receivers": "/alerts/receivers",
    "audit": "/audit?only=people",
    "explain": "/explain",
    "refusals": "/refusals",
    "erase": "/refusals/erase",
    "explain_sample": ("/refusals", "td a[href^='/explain/']"),
    "runbooks": "/runbooks",
    "runbook": ("/runbooks", "tbody a[href^='/runbooks/']"),
    "new_runbook": "/runbooks/new",
    "edit_runbook": "/runbooks/redis-slow/edit",
    "runbook_revisions": "/runbooks/redis-slow/revisions?revision=1",
    "drills": "/drills",
    "people": "/people",
    "person": ("/people", "tbody a[href^='/people/']"),
    "tokens": "/tokens",
    "account": "/account",
    "account_change_password": "/account/password",
    "mfa_activate_totp": "/account/second-factor",
    "logout": "/logout",
    "not_found": "/no-such-page",
}
#: Pages that a form shows: a field, what is typed there, and the button.
SENT = {"reprice_preview": ("[name=input]", "5.00", "button[value=preview]")}
#: Seen by those who are not logged in.
OUTSIDE = {
    "login": "/login",
    "welcome": "/welcome/no-such-link",
    "account_signup": "/login/closed",
    "account_inactive": "/login/off",
}
#: For the README: name of the file -> path.
BEST = {
    "overview": "/",
    "breaker": "/breakers/payments-api",
    "edit": "/edit/tier?key=enterprise&limit.requests.limit=90",
    "refusals": "/refusals",
}
_BEST_SIZE = {"width": 1280, "height": 860}
#: Photographed while a breaker is open: the demo's vendor fails for 25 s in every 90 s.
INCIDENT = ("overview", "breakers", "breaker")
_INCIDENT_S = 100.0
#: A machine with other work needs minutes for what an idle one does in a second.
_PATIENCE_S = 180.0


def main() -> int:
    given = _arguments()
    chromium = next((path for path in CHROMIUMS if Path(path).exists()), None)
    if chromium is None:
        sys.stderr.write("needs Chromium: install it with `apt-get install chromium`\n")
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    photograph = _photograph_best if given.readme else _photograph_all
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if given.password:
            if given.fill:
                _fill(browser, given)
            missed = photograph(browser, given)
        else:
            with _demo() as (given.url, given.password, given.folder):
                _fill(browser, given)
                missed = photograph(browser, given)
        browser.close()
    sys.stdout.write(f"{len(list(given.out.glob('*.png')))} pictures in {given.out}\n")
    for sentence in missed:
        sys.stderr.write(f"Not photographed: {sentence}\n")
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Take pictures of every page of a demo.")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of a running demo")
    parser.add_argument("--name", default="admin", help="who logs in")
    parser.add_argument("--out", type=Path, default=ROOT / "test-results" / "screenshots")
    parser.add_argument("--themes", nargs="+", default=["dark", "light"])
    parser.add_argument("--widths", nargs="+", type=int, default=[1440, 1920, 390])
    parser.add_argument("--fill", action="store_true", help="first give every list of this demo an entry")
    parser.add_argument(
        "--readme", action="store_true", help="only the pictures of the README, into docs/pictures"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], choices=sorted({*OUTSIDE, *PAGES}), help="names of pages"
    )
    parser.add_argument(
        "--patience", type=float, default=_INCIDENT_S, help="seconds until a list must have an entry"
    )
    given = parser.parse_args()
    if given.readme:
        given.out = ROOT / "docs" / "pictures"
    given.password, given.folder = os.environ.get("PASSWORD", ""), os.environ.get("FUSEBOARD_DATA_DIR", "")
    return given


@contextmanager
def _demo() -> Iterator[tuple[str, str, str]]:
    """Run a demo with data of its own, and yield its address, the password of its admin, and its folder."""
    # Its lists are empty at first, also when an earlier run ended in the middle.
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "demo"],
            cwd=ROOT,
            env=os.environ | {"FUSEBOARD_DATA_DIR": folder},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            url = password = ""
            while not (url and password):
                line = process.stdout.readline() if process.stdout else ""
                if not line:
                    raise SystemExit("the demo did not start; or pass PASSWORD=... of one that runs")
                url = url or "".join(re.findall(r"^\s+(http://\S+?)/?(?:\x1b|\s*$)", line))
                password = "".join(re.findall(r"^\s+admin\s+(\S+)$", line))
            # A full pipe would stop the demo.
            threading.Thread(target=lambda: list(process.stdout or ()), daemon=True).start()
            yield url, password, folder
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=_PATIENCE_S)


def _fill(browser: Browser, given: argparse.Namespace) -> None:
    """Give every list an entry: suggestions, an override, a template, rules for Envoy, a planned change
    and an import.
    """
    # The demo itself has no suggestions: they need two pods, and its models have one. It has no month that is
    # over, and no budget that is older than its calls.
    # As in the demo, only its folder counts.
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FUSEBOARD_", "DATABASE_URL"))
    }
    for made in ("suggestions.put_suggestions", "past_costs.make_up_costs"):
        module, _, name = made.partition(".")
        put = f"from tools.demo.{module} import {name}; {name}()"
        subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "manage.py", "shell", "-v", "0", "-c", put],
            cwd=ROOT,
            env=plain | ({"FUSEBOARD_DATA_DIR": given.folder} if given.folder else {}),
            check=True,
        )
    page = _log_in(_context(browser, given.url), given)
    page.goto("/breakers/search")
    page.check("[name=act][value=forced_open]", force=True)
    page.fill("#override [name=reason]", "CHG-4821 vendor maintenance")
    page.check("#override [name=lasts][value='15']", force=True)
    page.click("#override button[type=submit]")
    page.wait_for_selector("#override .notice")
    page.goto("/templates")
    for name, value in {"name": "partner", "limit": "600", "window_s": "60", "burst": "50"}.items():
        page.fill(f".form [name={name}]", value)
    page.fill(".form [name=reason]", "CAP-771 one limit for all partners")
    page.click(".form button[type=submit]")
    page.wait_for_url("**/templates/of/**")
    page.goto("/envoy/new")
    page.fill("[name=reason]", "CAP-790 limits of the edge")
    page.click("button[value=save]")
    page.wait_for_url("**/envoy/of/**")
    page.goto("/edit/tier?key=pro&limit.requests.limit=45")
    page.fill("[name=reason]", "CRM-5581 a new contract")
    page.fill("[name=starts]", time.strftime("%Y-%m-%dT%H:%M", time.gmtime(time.time() + 86400)))
    page.click("button[value=save]")
    page.wait_for_load_state()
    page.goto("/edit/tenant?key=initech&limit.requests.limit=45")
    page.fill("[name=reason]", "CAP-771 Black Friday")
    page.click("button[value=save]")
    page.wait_for_url("**/tenant?key=initech&saved=*")
    page.goto("/import")
    plan = b"tenants:\n  globex:\n    tier: pro\n"
    page.set_input_files(
        "#f-file", {"name": "contracts.yaml", "mimeType": "application/yaml", "buffer": plan}
    )
    page.wait_for_url("**/import/*")
    page.goto("/requests")
    page.select_option("[name=needed]", "1")
    page.fill("[name=reason]", "POL-12 two people for each change")
    page.click(".form:has([name=needed]) button[type=submit]")
    page.wait_for_load_state()
    page.goto("/edit/tier?key=free&limit.requests.limit=12")
    page.fill("[name=reason]", "CAP-802 larger free tier")
    page.click("button[value=save]")
    page.wait_for_load_state()
    page.context.close()


def _context(browser: Browser, url: str, **options: Any) -> BrowserContext:
    context = browser.new_context(base_url=url, ignore_https_errors=True, **options)
    context.set_default_timeout(1000 * _PATIENCE_S)
    return context


def _log_in(context: BrowserContext, given: argparse.Namespace) -> Page:
    page = context.new_page()
    page.goto("/login")
    page.fill("#id_username", given.name)
    page.fill("#id_password", given.password)
    page.click("button[type=submit]")
    page.wait_for_selector("header.bar")
    return page


def _photograph_best(browser: Browser, given: argparse.Namespace) -> list[str]:
    """The pictures of the README, as large as a screen."""
    page = _log_in(_context(browser, given.url, viewport=_BEST_SIZE), given)
    # Until there are refusals to display.
    page.wait_for_timeout(60_000)
    for name, address in BEST.items():
        if name in INCIDENT:
            _await_incident(page)
        page.goto(address)
        _shoot(page, given.out / f"{name}.png", full_page=False)
    return []


def _photograph_all(browser: Browser, given: argparse.Namespace) -> list[str]:
    """Photograph each page in each look. Return a sentence for each page that has no picture."""
    first = _context(browser, given.url, viewport={"width": 1440, "height": 900})
    watcher = _log_in(first, given)
    cookies = first.cookies()
    looks = [(theme, width) for theme in given.themes for width in given.widths]
    inside, outside = (
        {look: _page_of(browser, given.url, look, known) for look in looks} for known in (cookies, [])
    )
    missed = []
    for name in given.only or (*OUTSIDE, *PAGES):
        try:
            address = OUTSIDE.get(name) or _address(watcher, name, within_s=given.patience)
        except Error as error:
            address = None
            missed.append(f"{name}: {_first_line(error)}")
        else:
            if address is None:
                missed.append(f"{name}: nothing to show on {watcher.url}")
        if address is None:
            continue
        if name in INCIDENT:
            _await_incident(watcher)
        for (theme, width), page in (outside if name in OUTSIDE else inside).items():
            try:
                file = given.out / f"{name}-{theme}-{width}.png"
                _photograph(page, address, file, given.password, SENT.get(name))
            except Error as error:
                missed.append(f"{name}, {theme}, {width} px: {_first_line(error)}")
    return missed


def _photograph(
    page: Page, address: str, file: Path, password: str, sent: tuple[str, str, str] | None
) -> None:
    page.goto(address)
    if page.locator("form[action*=again]").count():
        page.fill("#id_password", password)
        page.click("button[type=submit]")
    if sent:
        field, value, button = sent
        page.fill(field, value)
        page.click(button)
        page.wait_for_load_state()
    _shoot(page, file)


def _first_line(error: Error) -> str:
    return str(error).partition("\n")[0]


def _page_of(browser: Browser, url: str, look: tuple[str, int], cookies: Any) -> Page:
    theme, width = look
    context = _context(browser, url, viewport={"width": width, "height": HEIGHTS.get(width, 900)})
    context.add_cookies([*cookies, {"name": "theme", "value": theme, "url": url}])
    return context.new_page()


def _address(page: Page, name: str, *, within_s: float) -> str | None:
    """Where a page is; ``None`` when the list has no entry within this time: the demo makes some."""
    target = PAGES[name]
    if isinstance(target, str):
        return target
    start, link = target
    ends = time.monotonic() + within_s
    while True:
        page.goto((_address(page, start, within_s=within_s) or "/") if start in PAGES else start)
        found = page.locator(link).first
        if found.count():
            return found.get_attribute("href")
        if time.monotonic() > ends:
            return None
        page.wait_for_timeout(2_000)


def _await_incident(page: Page) -> None:
    """Wait until a breaker is open, for at most one period of the demo."""
    page.goto("/")
    ends = time.monotonic() + _INCIDENT_S
    while not page.locator("#cards .st-open").count() and time.monotonic() < ends:
        page.wait_for_timeout(200)


def _shoot(page: Page, file: Path, *, full_page: bool = True) -> None:
    # Until the first message of the socket and the points of the charts; Playwright's own wait needs eval,
    # which the policy of the page forbids.
    ends = time.monotonic() + _PATIENCE_S
    waiting = "#live:not([data-frame]) b:text-is('Loaded'), .chart-say:text('Loading')"
    while page.locator(waiting).count() and time.monotonic() < ends:
        page.wait_for_timeout(50)
    page.wait_for_timeout(200)
    page.screenshot(path=file, full_page=full_page)
    if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth + 1"):
        sys.stderr.write(f"{file.name}: wider than its window\n")


if __name__ == "__main__":
    sys.exit(main())
