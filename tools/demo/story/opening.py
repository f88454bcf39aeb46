"""Everything runs, users log in, tenants send calls."""

import time

import httpx

from fuseboard.contract.words import Mode
from tools.demo.scenario import FLAKY, PODS, STORYTELLER
from tools.demo.story.chapter import Chapter, CheckFailed

PAGES = ("/", "/breakers", "/servers", "/tenants", "/audit")


def login_roles(chapter: Chapter) -> str:
    """Each role can do what it may, and no more."""
    stranger = httpx.get(chapter.demo.url("web") + "/", follow_redirects=False)
    if stranger.status_code != 302:
        raise CheckFailed(f"an anonymous visitor sees the overview: status {stranger.status_code}")
    forms = {}
    for role in ("viewer", "operator", "admin"):
        browser = chapter.browser(role)
        for page in PAGES:
            browser.read(page)
        breaker = browser.read(f"/breakers/{FLAKY}")
        browser.read(f"/tenant?key={STORYTELLER}")
        editor = browser.client.get(f"/edit/tenant?key={STORYTELLER}").status_code
        forms[role] = ('id="override-form"' in breaker, editor == 200)
    expected = {"viewer": (False, False), "operator": (True, False), "admin": (True, True)}
    if forms != expected:
        raise CheckFailed(f"forms offered (override, quota): {forms}")
    denied = _trip_as_viewer(chapter)
    if denied != 403:
        raise CheckFailed(f"a viewer who sends the override form anyway gets {denied}, not 403")
    return (
        f"3 roles read {len(PAGES) + 2} pages each; override form from operator on, quota form for admin; "
        "a viewer who sends one anyway gets 403"
    )


def _trip_as_viewer(chapter: Chapter) -> int:
    viewer = chapter.browser("viewer")
    # Any form of the page has the token that a forged request would need.
    form = viewer.form(f"/breakers/{FLAKY}", "csrfmiddlewaretoken")
    form.action, form.method = form.page, "POST"
    return viewer.send(form, act="forced_open", reason="I was just curious", lasts="5").status_code


def traffic(chapter: Chapter) -> str:
    """The tenants' calls go through all three pods, decided by Redis."""
    chapter.demo.figures(reset=True)
    began = time.monotonic()
    time.sleep(2.0)
    accounts = chapter.demo.figures()
    seconds = time.monotonic() - began
    rates = {pod: account.answered / seconds for pod, account in accounts.pods.items()}
    for pod in PODS:
        answer = chapter.ask(pod, "search", STORYTELLER)
        if answer.status != 200 or answer.mode != Mode.SHARED:
            raise CheckFailed(f"{pod} answers {answer.status} in mode {answer.mode!r}: {answer.body}")
    # The load generator sends less where the machine is busy.
    if min(rates.values()) < 5 / chapter.demo.patience:
        raise CheckFailed(f"a pod is idle: {rates} calls/s")
    if trouble := accounts.trouble():
        raise CheckFailed(trouble)
    each = ", ".join(f"{pod} {rate:.0f}" for pod, rate in rates.items())
    return f"{sum(rates.values()):.0f} calls/s ({each}), all answered, every pod in mode shared"
