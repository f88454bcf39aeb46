"""Forms, keys and messages in a real browser: findings S2 and S3 of the browser review."""

import re
from datetime import timedelta

import pytest
from browsing import becomes, choose, is_live
from django.utils import timezone
from fleet_rows import breaker, notify, put_figures, put_server
from positions import distance_down

from controlplane.breakers import overrides
from fuseboard.contract.words import OverrideMode
from tests.people import SEED

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_forced_closed_begins_with_a_duration_that_it_allows(sign_in):
    """S2.10: one hour was chosen and hidden, so the form was refused."""
    page = sign_in("olga")
    page.goto("/breakers/payments-api")
    choose(page, "act", "forced_closed")
    assert page.is_checked("[name=lasts][value='15']")
    becomes(page, "document.querySelector('#preview button').textContent.includes('Force closed for 15 min')")
    page.fill("#f-confirm", "payments-api")
    page.fill("#f-reason", "the vendor asked for it")
    page.click("#preview button")
    becomes(page, "document.querySelector('#override').innerText.includes('is forced closed until')")


def test_the_extension_of_forced_closed_keeps_no_hidden_duration(sign_in, limits):
    """Force open for 1 h, then Extend: 1 h stayed chosen, hidden, and the form was refused."""
    page = sign_in("olga")
    overrides.override_breaker(
        environment="production",
        dependency="payments-api",
        mode=OverrideMode.FORCED_CLOSED,
        expires_at=timezone.now() + timedelta(minutes=5),
        reason="the vendor asked for it",
        actor=SEED,
    )
    page.goto("/breakers/payments-api")
    choose(page, "act", "forced_open")
    choose(page, "lasts", "60")
    choose(page, "act", "extend")
    assert page.is_checked("[name=lasts][value='15']")
    becomes(page, "document.querySelector('#preview button').textContent.includes('Extend for 15 min')")
    choose(page, "lasts", "5")
    choose(page, "act", "forced_open")
    assert page.is_checked("[name=lasts][value='5']"), "what is offered stays chosen"


def test_o_leads_to_the_form_of_a_breaker(sign_in):
    """S2.18: the first field of the form is hidden, and took no focus."""
    page = sign_in("olga")
    page.goto("/breakers/payments-api")
    page.keyboard.press("o")
    assert page.evaluate("document.activeElement.name") == "act"


def test_what_is_wrong_with_a_field_is_said_beside_it_until_it_is_changed(sign_in):
    """S2.20 and S2.21: an error stayed under the choice it had asked for, and some forms had bubbles."""
    page = sign_in("ada")
    page.goto("/breakers/payments-api")
    page.click("#preview button")
    page.wait_for_selector("#act-err")
    choose(page, "act", "forced_open")
    assert page.query_selector("#act-err") is None
    assert page.query_selector("[aria-describedby~='act-err']") is None
    page.goto("/drills")
    page.click("text=Start drill")
    error = ".field:has(#f-reason) .err"
    page.wait_for_selector(error)
    assert "Say why" in page.inner_text(error)
    assert page.get_attribute("#f-reason", "aria-describedby") == "f-reason_hint f-reason_error"
    page.fill("#f-reason", "t")
    assert page.query_selector(error) is None
    assert page.get_attribute("#f-reason", "aria-invalid") is None
    described = page.get_attribute("#f-reason", "aria-describedby") or ""
    assert described == "f-reason_hint", "the error is no longer there"


SENT = {
    "/views?address=/audit": ("#f-address", "/no/list", "f-address"),
    "/alerts/rules?edit=429#h-n": ("#f-warning", "1,5", "f-warning"),
    "/tenants/bulk": ("#f-quota", "a/b", "f-quota"),
    "/account/password": ("#id_oldpassword", "wrong", "id_oldpassword"),
    "/dependencies/new": ("#f-name", "a/b", "f-name"),
    "/limits/clear": ("#f-limit", "", "f-limit"),
    "/edit/tier?key=pro": ("#f-own-priority", "-1", "f-own-priority"),
}


@pytest.mark.parametrize("address", SENT)
def test_a_refused_form_begins_at_its_first_error(sign_in, address):
    """Where another field took the focus, or the address named a part of the page, nothing led to it."""
    page = sign_in("ada")
    control, typed, focused = SENT[address]
    page.goto(address)
    page.fill(control, typed)
    page.press(control, "Enter")
    page.wait_for_selector(f"#{focused}_error")
    becomes(page, f"document.activeElement.id === '{focused}'")
    described = page.get_attribute(control, "aria-describedby").split()
    assert f"{focused}_error" in described


def test_a_date_without_its_time_is_refused_beside_its_field(sign_in):
    """The browser sends nothing for it: a mute that was meant for later began at once."""
    page = sign_in("ada")
    page.goto("/alerts/mutes")
    page.select_option("#f-rule", "lag")
    page.focus("#f-starts")
    page.keyboard.type("01312030")
    assert page.input_value("#f-starts") == "", "the browser drops what is half typed"
    page.fill("#f-reason", "CHG-4821 vendor maintenance")
    page.click("button[value=add]")
    assert page.inner_text("#f-starts_error") == "Enter the whole date and time, or clear all of it."
    assert page.evaluate("document.activeElement.id") == "f-starts"
    assert "f-starts_error" in page.get_attribute("#f-starts", "aria-describedby")
    assert page.input_value("#f-reason") == "CHG-4821 vendor maintenance"
    page.fill("#f-starts", "")
    assert page.query_selector("#f-starts_error") is None
    page.click("button[value=add]")
    page.wait_for_selector(".saved:has-text('Undo')")


def test_a_group_of_choices_with_an_error_has_the_focus(sign_in):
    page = sign_in("ada")
    page.goto("/drills")
    page.fill("#f-reason", "to see what happens")
    page.click("text=Start drill")
    page.wait_for_selector("text=Choose pods by name")
    # The choice of which pods is displayed whatever is chosen, and the list of pods is not.
    becomes(page, "document.activeElement.name === 'who'")


def test_a_long_word_does_not_widen_a_page(sign_in):
    page = sign_in("ada")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/runbooks/new")
    for control in ("#f-slug", "#f-title", "#f-body"):
        page.fill(control, "W" * 60)
    page.fill("#f-reason", "W" * 300)
    page.click("button[value=save]")
    page.wait_for_selector("#f-body_error")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_drill_form_displays_only_what_the_choice_needs(sign_in):
    """S3.32: pods, percent and service at once, and pods only with Ctrl and a click."""
    page = sign_in("ada")
    page.goto("/drills")
    for who, field in (("servers", "[name=servers]"), ("percent", "#f-pct"), ("service", "#f-svc")):
        choose(page, "who", who)
        shown = {
            other
            for other in ("[name=servers]", "#f-pct", "#f-svc")
            if page.locator(other).first.is_visible()
        }
        assert shown == {field}
    choose(page, "who", "servers")
    page.check("[name=servers][value=web-1]")
    page.check("[name=servers][value=web-3]")
    page.fill("#f-reason", "to see what happens")
    page.click("text=Start drill")
    page.wait_for_selector("text=Drill started on 2 pods.")


def test_a_row_is_updated_in_its_place_and_a_new_order_is_offered(sign_in):
    """S2.22b: a breaker that opened under the pointer kept its row, and with 200 rows was off the screen."""
    page = sign_in("vera")
    page.goto("/breakers")
    is_live(page)
    page.hover("#row-payments-api")
    before = distance_down(page, "#h-b", "#row-payments-api")
    for number in (1, 2, 3):
        views = [breaker("payments-api"), breaker("search", "open", generation=9, window_failures=31)]
        put_server(f"web-{number}", breakers=views)
    notify()
    page.wait_for_selector("#row-search.st-open")
    assert page.evaluate("document.querySelector('#rows tr').id") == "row-payments-api"
    assert page.inner_text("[data-resort]") == "1 opened, sort again"
    assert distance_down(page, "#h-b", "#row-payments-api") == before, "the offer moves no row"
    # Focus keeps the order also when the pointer leaves, so the button has to change it.
    page.focus("#row-payments-api a")
    page.dispatch_event("[data-resort]", "click")
    becomes(page, "document.querySelector('#rows tr').id === 'row-search'")
    assert page.is_hidden("[data-resort]")


def test_an_order_that_is_right_again_is_not_offered(sign_in):
    """A breaker that opened and closed under the pointer left "1 opened, sort again"."""
    page = sign_in("vera")
    page.goto("/breakers")
    is_live(page)
    page.hover("#row-payments-api")
    for state, css in (("open", ".st-open"), ("closed", ":not(.st-open)")):
        for number in (1, 2, 3):
            views = [breaker("payments-api"), breaker("search", state, generation=9)]
            put_server(f"web-{number}", breakers=views)
        notify()
        page.wait_for_selector(f"#row-search{css}")
        assert page.is_visible("[data-resort]") is (state == "open")


def test_a_pod_that_loses_redis_under_the_pointer_is_counted_and_focus_stays(sign_in):
    page = sign_in("vera")
    page.goto("/servers")
    is_live(page)
    # The verdict above gets a line more, and moves all rows. The pointer stays in the list.
    page.hover("#srv-web-3")
    before = distance_down(page, "#h-s", "#srv-web-1")
    put_server("web-3", mode="local", mode_cause="connection refused", redis_p99_us=None)
    notify()
    page.wait_for_selector("#srv-web-3.st-warn")
    assert page.inner_text("[data-resort]") == "1 in trouble, sort again"
    assert distance_down(page, "#h-s", "#srv-web-1") == before, "the offer moves no row"
    page.focus("#srv-web-1 a")
    page.mouse.move(0, 0)
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("!document.activeElement.closest('tbody')")
    # The list keeps its order, and so its button, while the keyboard is on the way.
    put_server("web-1", redis_p99_us=1234)
    notify()
    page.wait_for_selector("#srv-web-1:has-text('1.2')")
    for _ in range(20):
        if page.evaluate("document.activeElement.hasAttribute('data-resort')"):
            break
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    becomes(page, "document.querySelector('#rows tr').id === 'srv-web-3'")
    becomes(page, "document.activeElement.closest('tr')?.id === 'srv-web-3'")
    assert page.is_hidden("[data-resort]")


def test_pause_lasts_over_pages(sign_in):
    """S2.23"""
    page = sign_in("vera")
    is_live(page)
    page.click("[data-pause]")
    page.goto("/breakers")
    becomes(page, "document.querySelector('#live b').textContent === 'Paused'")
    assert page.get_attribute("[data-pause]", "aria-pressed") == "true"
    page.click("[data-pause]")
    is_live(page)
    page.goto("/")
    is_live(page)


def test_the_account_menu_closes(sign_in):
    """S2.23: neither by Esc nor by a click beside it."""
    page = sign_in("vera")
    for close in (lambda: page.keyboard.press("Escape"), lambda: page.mouse.click(700, 600)):
        page.click(".me summary")
        assert page.is_visible(".me-menu")
        close()
        assert page.is_hidden(".me-menu")


def test_a_page_without_a_network_does_not_promise_that_forms_work(page, sign_in):
    """S2.24"""
    page.route_web_socket(re.compile("/ws/live"), lambda socket: None)
    sign_in("vera")
    reach = "document.querySelector('#stale [data-reach]').textContent"
    becomes(page, f"{reach} === 'You can still submit forms.'")
    page.context.set_offline(True)
    becomes(page, f"{reach}.startsWith('Fuseboard cannot be reached')")
    page.context.set_offline(False)
    becomes(page, f"{reach} === 'You can still submit forms.'")
    # What the browser itself notes of the failed question.
    page.complaints[:] = [one for one in page.complaints if "ERR_INTERNET_DISCONNECTED" not in one]


@pytest.mark.parametrize("width", [1440, 1920])
def test_a_wall_display_clips_no_figure(sign_in, width):
    """S3.34: the last line of a tile read "limit 2" and "sent ou"."""
    put_figures(requests_per_s=1234.0, refused_per_s=396.1, store={"p99_us": 45_200})
    page = sign_in("vera")
    page.set_viewport_size({"width": width, "height": 1080})
    page.goto("/?wall")
    is_live(page)
    clipped = page.evaluate(
        "[...document.querySelectorAll('.kpi, .kpi .why, .kpi .k')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"
    )
    assert clipped == []


def test_nothing_touches_its_border_or_its_neighbour(sign_in):
    """S3.26 and S3.27: messages touched the heading, and five choices their borders."""
    page = sign_in("olga")
    page.goto("/breakers/payments-api")
    choose(page, "act", "forced_open")
    page.fill("#f-reason", "CHG-4821 vendor maintenance")
    page.click("#preview button")
    page.wait_for_selector("#override .notice")
    page.goto("/breakers/payments-api")
    assert page.locator("#override-form .seg").first.locator("label").count() == 5
    tight = page.evaluate(
        """[...document.querySelectorAll('#override-form .seg label')].filter(label => {
          const text = document.createRange();
          text.selectNodeContents(label.lastChild);
          const [inner, outer] = [text.getClientRects(), label.getBoundingClientRect()];
          return [...inner].some(r => r.width && (r.left < outer.left + 3 || r.right > outer.right - 2));
        }).map(label => label.innerText)"""
    )
    assert tight == []
    gap = page.evaluate(
        "document.querySelector('#override-form .seg').getBoundingClientRect().top"
        " - document.querySelector('#override-form legend').getBoundingClientRect().bottom"
    )
    assert gap >= 3


def test_a_message_keeps_its_distance_from_the_heading(sign_in):
    """S3.26"""
    page = sign_in("ada")
    page.goto("/drills")
    page.check("[name=servers][value=web-1]")
    page.fill("#f-reason", "to see what happens")
    page.click("text=Start drill")
    page.wait_for_selector(".notice.saved")
    gap = page.evaluate(
        "document.querySelector('.verdict').getBoundingClientRect().top"
        " - document.querySelector('.notice.saved').getBoundingClientRect().bottom"
    )
    assert gap >= 6
    page.goto("/breakers/payments-api")
    header = page.locator("aside .panel > header:has(#h-rb)").bounding_box()
    assert header["height"] < 60, "the heading of the runbook in one or two lines, its link beside it"


def test_a_phone_displays_what_decides_and_hints_at_the_rest(sign_in):
    """S3.35: the tables scrolled sideways without a hint, and Next and Limits were out of sight."""
    for number in (1, 2, 3):
        views = [breaker("payments-api", "open", generation=9, window_failures=31), breaker("search")]
        put_server(f"web-{number}", breakers=views)
    page = sign_in("vera")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/breakers")
    is_live(page)
    assert right_of(page, "#row-payments-api td:nth-child(11)") <= 390
    assert right_of(page, "#row-payments-api td:nth-child(12)") <= 390
    page.goto("/servers")
    is_live(page)
    assert right_of(page, "#srv-web-1 td:nth-child(6)") <= 390
    assert right_of(page, "#srv-web-1 td:nth-child(10)") <= 390
    page.goto("/audit")
    hint = "getComputedStyle(document.querySelector('.scroll')).backgroundImage"
    assert page.evaluate(hint).count("linear-gradient") == 4


def right_of(page, selector):
    box = page.locator(selector).bounding_box()
    assert box, f"{selector} is not displayed"
    return box["x"] + box["width"]


def test_a_form_that_is_being_sent_takes_no_text(sign_in):
    """The answer of a slow submit replaced what was typed meanwhile."""
    page = sign_in("ada")
    page.goto("/breakers/payments-api/settings")
    page.fill("#f-breaker-open_ms", "many")
    page.fill("#f-reason", "the vendor became slower")
    sent = """
        new Promise(resolve => {
          const form = document.querySelector('#dependency-form');
          form.requestSubmit();
          setTimeout(() => resolve([form.inert, form.contains(document.activeElement)]));
        })
    """
    assert page.evaluate(sent) == [True, False]
    page.wait_for_selector("#f-breaker-open_ms_error")
    assert not page.evaluate("document.querySelector('#dependency-form').inert")
    assert page.input_value("#f-breaker-open_ms") == "many"


#: Address, the keys that fill the form in from its first field, and the note afterwards.
BY_KEYBOARD = {
    "/views?address=/tenants": (["Tenants of today", "Enter"], "View Tenants of today is saved."),
    "/limits/clear": (
        # The second field is that of a budget.
        ["requests", *["Tab"] * 2, "acme-retail", *["Tab"] * 3, "asked for by sales", "Tab", "Enter"],
        "The counter of requests is cleared.",
    ),
    "/runbooks/payment-provider-timeouts/edit": (
        ["Payments time out", "Tab", "Tab", "asked for by sales", "Tab", "Enter"],
        "Revision 2 is saved.",
    ),
}


@pytest.mark.parametrize("address", BY_KEYBOARD)
def test_a_form_is_filled_in_and_saved_with_the_keyboard(sign_in, address):
    page = sign_in("ada")
    page.goto(address)
    keys, note = BY_KEYBOARD[address]
    page.focus("main form.form input[type=text], main form.write input[type=text]")
    page.keyboard.press("ControlOrMeta+a")
    for key in keys:
        if key in ("Tab", "Enter"):
            page.keyboard.press(key)
        else:
            page.keyboard.insert_text(key)
    page.wait_for_selector(f".notice:has-text({note!r})")


def test_escape_closes_a_dialog_and_keeps_what_was_typed(sign_in):
    page = sign_in("ada")
    page.goto("/runbooks/new")
    page.fill("#f-title", "Half a title")
    page.keyboard.press("ControlOrMeta+k")
    page.wait_for_selector("#palette[open]")
    page.keyboard.press("Escape")
    becomes(page, "!document.querySelector('#palette').open")
    assert page.input_value("#f-title") == "Half a title"
    assert page.evaluate("document.activeElement.id") == "f-title"
