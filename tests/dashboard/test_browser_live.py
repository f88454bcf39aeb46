"""The pages in a real browser, with the real web process."""

import re
import time

import pytest
from browsing import becomes, is_live
from fleet_rows import breaker, notify, put_figures, put_server

from dashboard.live.drawing import pack
from tests.dashboard.live_page import unpacked

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PAGES = (
    "/",
    "/breakers",
    "/breakers/payments-api",
    "/servers",
    "/tenants",
    "/tenant?key=acme-retail",
    "/audit",
)
PAGES += ("/runbooks", "/runbooks/payment-provider-timeouts")
PAGES += ("/revisions/3?back", "/import", "/schedules", "/tenants/bulk", "/templates")


def open_everywhere(state="open", **fields):
    for number in (1, 2, 3):
        views = [
            breaker("payments-api", state, generation=9, window_failures=31, **fields),
            breaker("search"),
        ]
        put_server(f"web-{number}", breakers=views)
    notify()


def test_the_dot_is_green_only_where_figures_are_live(sign_in):
    """It was green beside "Loaded", too."""
    page = sign_in("vera")
    dot = "getComputedStyle(document.querySelector('#live'), '::before').backgroundColor"
    colour = """name => {
      const probe = document.createElement("i");
      probe.style.color = `var(${name})`;
      document.body.append(probe);
      return getComputedStyle(probe).color;
    }"""
    page.goto("/runbooks")
    is_live(page)
    assert page.inner_text("#live b") == "Loaded"
    assert page.evaluate(dot) == page.evaluate(colour, "--muted")
    page.goto("/breakers")
    green = page.evaluate(colour, "--green")
    becomes(page, f"document.querySelector('#live b').textContent === 'Live' && {dot} === '{green}'")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_live_fits_and_complains_about_nothing(sign_in, path):
    page = sign_in("ada")
    page.goto(path)
    for width in (1440, 768, 390, 320):
        page.set_viewport_size({"width": width, "height": 900})
        is_live(page)
        beyond = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(beyond) <= 0, f"{path} is wider than {width} px"


def test_an_opening_breaker_appears_without_reload_within_a_second(sign_in):
    page = sign_in("vera")
    is_live(page)
    assert "payments-api" not in page.text_content("#verdict h1")
    took = []
    while len(took) < 12 and not any(one < 1.5 for one in took):  # the best, because the machine may be busy
        open_everywhere("closed")
        page.wait_for_selector("article#br-payments-api", state="detached")
        began = time.monotonic()
        open_everywhere()
        page.wait_for_selector("article#br-payments-api.st-open")
        took.append(time.monotonic() - began)
    assert min(took) < 1.5, took
    # A script writes them when the message has been drawn.
    becomes(page, "document.title.startsWith('payments-api open \u00b7 ')")
    becomes(page, "document.querySelector('link[rel=icon]').href.includes('favicon-open')")
    becomes(page, "document.querySelector('#announce').textContent.includes('payments-api is open')")


def test_countdowns_run_in_the_browser(sign_in):
    page = sign_in("vera")
    is_live(page)
    open_everywhere(until=time.time() + 599)
    page.wait_for_selector("#br-payments-api [data-until]")
    shown = "document.querySelector('#br-payments-api [data-until]').textContent"
    becomes(page, f"/^9:[0-5][0-9]$/.test({shown})")
    first = page.evaluate(shown)
    becomes(page, f"/^[89]:[0-5][0-9]$/.test({shown}) && {shown} < '{first}'")


def test_focus_half_typed_text_and_an_open_menu_survive_updates(sign_in):
    page = sign_in("olga")
    page.goto("/breakers/payments-api")
    is_live(page)
    page.check("input[name=act][value=forced_open]", force=True)
    page.fill("#f-reason", "half typed")
    page.evaluate("document.querySelector('#f-reason').setSelectionRange(2, 6)")
    open_everywhere()
    page.wait_for_selector("#hero.st-open")
    state = page.evaluate(
        "(() => { const e = document.activeElement; return [e.id, e.value, e.selectionStart, e.selectionEnd,"
        " document.querySelector('[value=forced_open]').checked]; })()"
    )
    assert state == ["f-reason", "half typed", 2, 6, True]


def test_pause_freezes_the_page_and_resume_updates_it(sign_in):
    page = sign_in("vera")
    is_live(page)
    page.click("[data-pause]")
    assert page.text_content("#live b") == "Paused"
    open_everywhere()
    becomes(page, "/[1-9] updates? waiting/.test(document.querySelector('#live').textContent)")
    assert page.query_selector("article#br-payments-api") is None
    page.click("[data-pause]")
    page.wait_for_selector("article#br-payments-api.st-open")
    is_live(page)


def next_second(page):
    """Wait until the clock of the page has moved."""
    clock = "document.querySelector('[data-clock]').textContent"
    becomes(page, f"{clock} !== '{page.evaluate(clock)}'")


def test_a_silent_socket_is_marked_stale_and_reconnected(sign_in):
    page = sign_in("vera")
    open_everywhere()
    page.wait_for_selector("article#br-payments-api [data-since]")
    is_live(page)
    # The socket stays open but sends nothing, as after a pulled cable.
    page.evaluate(
        "document.addEventListener('htmx:ws:before:message:incoming', e => {"
        " if (window.mute) { e.preventDefault(); e.stopImmediatePropagation(); } }, true); window.mute = true"
    )
    page.wait_for_selector("#stale:not([hidden])", timeout=40_000)
    assert "is-stale" in page.get_attribute(".app", "class")
    becomes(page, "document.querySelector('#stale').textContent.includes('You can still submit forms')")
    # Durations count to the last update, not on. The clock of the page does.
    counted = "document.querySelector('#br-payments-api [data-since]').textContent"
    next_second(page)
    lasted = page.evaluate(counted)
    next_second(page)
    next_second(page)
    assert page.evaluate(counted) == lasted
    page.evaluate("window.mute = false")
    page.wait_for_selector("#stale", state="hidden", timeout=40_000)
    is_live(page)


def test_the_banner_of_a_silent_page_believes_no_proxy_that_answers_for_web(sign_in):
    """It promised that forms can be submitted while a proxy answered 502."""
    page = sign_in("vera")
    is_live(page)
    page.route("**/healthz", lambda route: route.fulfill(status=502, body="Bad gateway"))
    page.evaluate(
        "document.addEventListener('htmx:ws:before:message:incoming',"
        " e => { e.preventDefault(); e.stopImmediatePropagation(); }, true)"
    )
    page.wait_for_selector("#stale:not([hidden])", timeout=40_000)
    becomes(page, "document.querySelector('[data-reach]').textContent.length > 0")
    assert page.text_content("[data-reach]") == "Fuseboard answers 502: forms cannot be submitted."
    assert all("502" in text for text in page.complaints)
    page.complaints.clear()


def test_a_missing_page_has_a_live_frame(sign_in):
    """After 10 s it raised a red alarm: its socket was refused."""
    page = sign_in("vera")
    for path in ("/no-such-page", "/breakers/gone"):
        page.goto(path)
        is_live(page)
        assert page.text_content("main h1").strip() in ("Page not found", "No such breaker")
        assert page.get_attribute("#live", "data-frame") is not None
    assert all("404" in text for text in page.complaints)
    page.complaints.clear()


def test_the_age_of_a_state_is_never_rounded_up(sign_in):
    """At 1.96 s the bar read "Live, updated 2.0 s ago", beside a limit of 2 s."""
    page = sign_in("vera")
    is_live(page)
    page.evaluate("""(() => {
        const mute = e => { e.preventDefault(); e.stopImmediatePropagation(); };
        document.addEventListener('htmx:ws:before:message:incoming', mute, true);
        const tick = document.querySelector('#tick');
        tick.dataset.rev = Number(tick.dataset.rev) + 1;
        tick.dataset.now = tick.dataset.shown = Date.now() / 1000;
        document.dispatchEvent(new Event('htmx:ws:after:message:incoming'));
        const stopped = Date.now() + 1970, since = performance.now() + 1970;
        Date.now = () => stopped;
        performance.now = () => since;
    })()""")
    label = "document.querySelector('#live').textContent"
    becomes(page, f"!{label}.includes('updated 0.0')")
    assert "updated 1.9\u202fs ago" in page.text_content("#live")


def seconds_of(clock):
    """ "23:59:58 UTC", as seconds since midnight."""
    hours, minutes, seconds = clock.split()[0].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def test_a_state_older_than_two_seconds_is_never_called_live(page, sign_in):
    """S1.1: messages that arrive in time, and bring an old state."""
    late_s = [0.0]

    def behind(socket):
        server = socket.connect_to_server()

        def older(stamp):
            return f'data-{stamp[1]}="{float(stamp[2]) - late_s[0]}"'

        def late(message):
            found = unpacked(message)
            found["html"]["tick"] = re.sub(r'data-(now|shown)="([0-9.]+)"', older, found["html"]["tick"])
            socket.send(pack(found))

        server.on_message(late)

    page.route_web_socket(re.compile("/ws/live"), behind)
    sign_in("vera")
    is_live(page)
    clock = seconds_of(page.text_content("[data-clock]"))
    late_s[0] = 30.0
    becomes(page, "document.querySelector('#live b').textContent === 'Delayed'")
    rev = page.get_attribute("#tick", "data-rev")
    becomes(page, f"document.querySelector('#tick').dataset.rev > {rev} + 2")
    assert page.text_content("#live b") == "Delayed"
    later_s = (seconds_of(page.text_content("[data-clock]")) - clock) % 86_400
    assert 0 < later_s < 43_200, "the clock does not jump back"
    late_s[0] = 0.0
    is_live(page)


def test_a_clock_of_the_server_that_steps_back_is_followed(sign_in):
    """The page said "Delayed" until the next connection: its clock only moved forward."""
    page = sign_in("vera")
    is_live(page)
    after_an_hour = """(() => {
        const tick = document.querySelector('#tick'), back = tick.dataset.now - 2.5;
        const begun = performance.now();
        for (let n = 0; n < 3600; n++) {
            tick.dataset.rev = Number(tick.dataset.rev) + 1;
            tick.dataset.now = tick.dataset.shown = back + (performance.now() - begun) / 1000;
            document.dispatchEvent(new Event('htmx:ws:after:message:incoming'));
            if (n === 0) window.firstWord = document.querySelector('#live b').textContent;
        }
        return [window.firstWord, document.querySelector('#live b').textContent];
    })()"""
    assert page.evaluate(after_an_hour) == ["Delayed", "Live"]


def test_a_page_without_live_content_says_when_it_was_loaded(sign_in):
    """S1.8"""
    page = sign_in("ada")
    for path in ("/tenants", "/drills", "/people/olga", "/schedules"):
        page.goto(path)
        is_live(page)
        becomes(page, "document.querySelector('#live b').textContent === 'Loaded'")
        # Also after further updates of its frame.
        rev = page.get_attribute("#tick", "data-rev")
        becomes(page, f"document.querySelector('#tick').dataset.rev > {rev}")
        assert page.text_content("#live").split()[:2] == ["Loaded", "at"]


def test_the_palette_filters_and_navigates_by_keyboard(sign_in):
    page = sign_in("vera")
    page.keyboard.press("Control+k")
    page.wait_for_selector("#pal-list [role=option]")
    page.keyboard.type("acme")
    becomes(page, "document.querySelectorAll('#pal-list [role=option]').length === 2")
    assert "acme-retail" in page.text_content("#pal-list [role=option][aria-selected=true]")
    page.keyboard.press("Enter")
    page.wait_for_url("**/tenant?key=acme-retail")
    page.keyboard.press("g")
    page.keyboard.press("b")
    page.wait_for_url("**/breakers")
    page.keyboard.press("/")
    page.keyboard.type("sea")
    becomes(page, "document.querySelectorAll('#rows tr:not([hidden])').length === 1")


def test_the_theme_is_remembered(sign_in):
    page = sign_in("vera")
    assert page.get_attribute("html", "data-theme") == "dark"
    page.click("summary.avatar")
    page.click("[data-theme-toggle]")
    page.goto("/servers")
    assert page.get_attribute("html", "data-theme") == "light"


def test_pods_on_local_fallback_come_first_without_reload(sign_in):
    page = sign_in("vera")
    page.goto("/servers")
    is_live(page)
    put_server("web-3", mode="local", mode_cause="connection refused", redis_p99_us=None)
    put_figures(live_servers=3)
    notify()
    becomes(page, "document.querySelector('#rows tr').id === 'srv-web-3'")
    row = page.text_content("#srv-web-3")
    for word in ("Local fallback", "connection refused", "without Redis", "no answer"):
        assert word in row
    assert "uses local limits" in page.text_content("#verdict")


def test_a_rows_order_does_not_change_under_the_pointer(sign_in):
    page = sign_in("vera")
    page.goto("/breakers")
    is_live(page)
    page.evaluate("window.loadedOnce = true")
    page.hover("#row-search")
    for number in (1, 2, 3):
        views = [breaker("payments-api"), breaker("search", "open", generation=9, window_failures=31)]
        put_server(f"web-{number}", breakers=views)
    notify()
    becomes(page, "document.querySelector('#counted').textContent.includes('open')")
    assert page.evaluate("document.querySelector('#rows tr').id") == "row-payments-api"
    page.mouse.move(5, 5)
    becomes(page, "document.querySelector('#rows tr').id === 'row-search'")
    assert page.evaluate("window.loadedOnce")


def test_a_page_that_reconnects_keeps_what_is_typed(sign_in):
    """Updates are paused and resumed before the connection is back."""
    page = sign_in("olga")
    page.goto("/breakers/search")
    is_live(page)
    page.fill("[name=reason]", "the vendor says so")
    for _ in range(4):
        page.click("[data-pause]")
    becomes(page, "document.querySelector('#live b').textContent === 'Live'")
    assert page.input_value("[name=reason]") == "the vendor says so"


def test_a_page_is_live_although_a_script_loads_late(page, sign_in):
    """The second script opens the socket: the first must not finish with the page before that."""

    def late(route):
        time.sleep(1.0)
        route.continue_()

    page.route("**/hx-ws*.js", late)
    sign_in("vera")
    is_live(page)
