"""Pictures of every page of a running demo, dark and light, for a desktop, a wall display and a phone.

Start ``make demo``, then ``make screenshots PASSWORD=...`` with the password of its admin. Look at the
pictures one by one: no test sees what looks wrong. They are in ``test-results/screenshots``.
"""

import argparse
import os
import sys
from pathlib import Path

from playwright.sync_api import BrowserContext, Error, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
CHROMIUMS = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
HEIGHTS = {1440: 900, 1920: 1080, 390: 844}

#: Name -> path; or the list page and the link on it that leads to the page.
PAGES: dict[str, str | tuple[str, str]] = {
    "overview": "/",
    "breakers": "/breakers",
    "breaker": ("/breakers", "#rows a"),
    "pods": "/servers",
    "pod": ("/servers", "#rows a"),
    "tenants": "/tenants",
    "tenant": ("/tenants", "tbody .strong a"),
    "effective": ("tenant", ".quota .more"),
    "bulk": "/tenants/bulk",
    "bulkheads": "/bulkheads",
    "limits": "/limits",
    "retries": "/retries",
    "tiers": "/tiers",
    "edit-tier": ("/tiers", "tbody .strong a"),
    "templates": "/templates",
    "template": ("/templates", "tbody .strong a"),
    "revisions": "/revisions",
    "revision": ("/revisions?only=changes", "tbody .strong a"),
    "import": "/import",
    "draft": ("/import", "tbody .strong a"),
    "requests": "/requests",
    "request": ("/requests", "tbody .strong a"),
    "schedules": "/schedules",
    "audit": "/audit",
    "runbooks": "/runbooks",
    "runbook": ("/runbooks", "tbody a"),
    "drills": "/drills",
    "people": "/people",
    "person": ("/people", "tbody a"),
    "tokens": "/tokens",
    "account": "/account",
    "password": "/account/password",
    "reauthenticate": "/account/again",
    "second-factor": "/account/second-factor",
    "logout": "/logout",
    "not-found": "/no-such-page",
}
#: Seen by those who are not logged in.
OUTSIDE = {
    "login": "/login",
    "welcome": "/welcome/no-such-link",
    "no-account": "/login/closed",
    "deactivated": "/login/off",
}


def main() -> int:
    given = _arguments()
    chromium = next((path for path in CHROMIUMS if Path(path).exists()), None)
    if chromium is None or not given.password:
        sys.stderr.write("needs Chromium, and PASSWORD: the password of the admin that the demo prints\n")
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for theme in given.themes:
            for width in given.widths:
                size = {"width": width, "height": HEIGHTS.get(width, 900)}
                context = browser.new_context(base_url=given.url, viewport=size, ignore_https_errors=True)
                context.add_cookies([{"name": "theme", "value": theme, "url": given.url}])
                _photograph(context, given, f"{theme}-{width}")
                context.close()
        browser.close()
    sys.stdout.write(f"{len(list(given.out.glob('*.png')))} pictures in {given.out}\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Take pictures of every page of a running demo.")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the demo")
    parser.add_argument("--name", default="admin", help="who logs in")
    parser.add_argument("--out", type=Path, default=ROOT / "test-results" / "screenshots")
    parser.add_argument("--themes", nargs="+", default=["dark", "light"])
    parser.add_argument("--widths", nargs="+", type=int, default=list(HEIGHTS))
    parser.add_argument("--only", nargs="+", default=[], help="names of pages")
    given = parser.parse_args()
    given.password = os.environ.get("PASSWORD", "")
    return given


def _photograph(context: BrowserContext, given: argparse.Namespace, suffix: str) -> None:
    page = context.new_page()
    for name, path in OUTSIDE.items():
        if not given.only or name in given.only:
            page.goto(path)
            _shoot(page, given.out / f"{name}-{suffix}.png")
    page.goto("/login")
    page.fill("#id_username", given.name)
    page.fill("#id_password", given.password)
    page.click("button[type=submit]")
    page.wait_for_selector("#nav")
    for name in given.only or PAGES:
        if name in PAGES and _open(page, name):
            if name == "second-factor" and page.locator("#id_password").count():
                page.fill("#id_password", given.password)
                page.click("button[type=submit]")
            _shoot(page, given.out / f"{name}-{suffix}.png")


def _open(page: Page, name: str) -> bool:
    """Go to a page; ``False`` when the list has no entry yet."""
    target = PAGES[name]
    if isinstance(target, str):
        page.goto(target)
        return True
    start, link = target
    if start in PAGES:
        if not _open(page, start):
            return False
    else:
        page.goto(start)
    found = page.locator(link).first
    if found.count() == 0:
        sys.stderr.write(f"{name}: nothing to show on {page.url}\n")
        return False
    address = found.get_attribute("href") or "/"
    page.goto(address)
    return True


def _shoot(page: Page, file: Path) -> None:
    try:
        # Until the first message of the socket: a page that has just loaded says Loaded, not Live.
        page.wait_for_function("document.querySelector('#live b')?.textContent !== 'Loaded'", timeout=3000)
    except Error:
        page.wait_for_timeout(500)  # a page without a socket, or a policy that forbids evaluating scripts
    page.screenshot(path=file, full_page=True)
    wide = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth + 1")
    if wide:
        sys.stderr.write(f"{file.name}: wider than its window\n")


if __name__ == "__main__":
    sys.exit(main())
