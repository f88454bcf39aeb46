"""People who edit and override, in a real browser."""

import pytest
from browsing import becomes, choose, is_live

from tests.people import OLGA, PASSWORD
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_an_operator_forces_a_breaker_open_and_resets_it(sign_in):
    page = sign_in("olga")
    page.goto("/breakers/payments-api")
    choose(page, "act", "forced_open")
    page.fill("#f-reason", "CHG-4821 vendor maintenance")
    choose(page, "lasts", "15")
    page.wait_for_selector("text=Force open for 15 min")
    assert "3 pods stop calling payments-api" in page.text_content("#preview")
    page.click("#override button[type=submit]")
    page.wait_for_selector("#override .notice >> text=payments-api is forced open until")
    page.wait_for_selector("#hero.st-forced")
    hero = page.text_content("#hero")
    for word in ("Forced open", "olga", "CHG-4821 vendor maintenance"):
        assert word in hero
    violet = page.evaluate("getComputedStyle(document.querySelector('#hero .state')).color")
    assert violet == "rgb(185, 162, 255)"
    # The answer to the form has the state. The next frame has the facts: how many pods report it.
    becomes(page, "document.querySelector('#facts').textContent.includes('0 of 3')")

    choose(page, "act", "reset")
    page.fill("#f-reason", "Vendor is back")
    page.click("#override button[type=submit]")
    page.wait_for_selector("#override .notice >> text=payments-api was reset")
    page.wait_for_selector("#hero.st-closed")
    page.goto("/audit")
    audit = page.text_content("table")
    assert "Breaker reset" in audit
    assert "Vendor is back" in audit


def test_a_refused_form_keeps_what_was_typed_and_says_where_it_is_wrong(sign_in):
    page = sign_in("olga")
    page.goto("/breakers/payments-api")
    choose(page, "act", "forced_closed")
    assert page.is_visible("#f-confirm")
    page.fill("#f-confirm", "payments")
    page.fill("#f-reason", "Let them through for the launch")
    choose(page, "lasts", "5")
    page.click("#override button[type=submit]")
    page.wait_for_selector("#f-confirm_error")
    assert page.get_attribute("#f-confirm", "aria-describedby") == "f-confirm_error"
    assert page.input_value("#f-confirm") == "payments"
    assert page.input_value("#f-reason") == "Let them through for the launch"
    assert page.is_checked("input[name=act][value=forced_closed]")
    becomes(page, "document.activeElement.id === 'f-confirm'")
    page.fill("#f-confirm", "payments-api")
    page.click("#override button[type=submit]")
    page.wait_for_selector("#override .notice >> text=payments-api is forced closed until")
    page.wait_for_selector("#hero.st-forced")
    assert "Forced closed" in page.text_content("#hero")


def test_the_form_shows_only_what_the_choice_needs(sign_in):
    page = sign_in("olga")
    page.goto("/breakers/payments-api")
    assert not page.is_visible("#f-confirm")
    assert not page.is_visible("input[name=lasts] >> nth=0")
    choose(page, "act", "forced_closed")
    assert page.is_visible("text=Force closed: every call is sent")
    assert not page.is_visible("label:has(input[name=lasts][value='240'])")
    choose(page, "act", "forced_open")
    choose(page, "lasts", "until")
    assert page.is_visible("#f-until")
    choose(page, "act", "reset")
    assert not page.is_visible("#f-until")


def test_the_preview_is_of_what_was_chosen_last(sign_in):
    """While a slow server answered, only the first of the later choices was asked about."""
    page, asked = sign_in("olga"), []
    page.route("**/breakers/payments-api/preview", lambda route: asked.append(route))
    page.goto("/breakers/payments-api")
    for number, (name, value) in enumerate((("act", "forced_open"), ("lasts", "60"), ("lasts", "15")), 1):
        choose(page, name, value)
        wait_until(
            lambda number=number: len(asked) == number,
            "a request for the preview",
            pause=lambda pause_s: page.wait_for_timeout(1000 * pause_s),
        )
    asked[-1].continue_()
    page.wait_for_selector("text=Force open for 15 min")


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        ("quota", ["quota", "limit", "window_s", "burst"]),
        ("scale", ["quota", "percent"]),
        ("tier", ["to_tier"]),
        ("move", ["to_parent"]),
        ("suspend", []),
    ],
)
def test_a_bulk_edit_asks_only_what_it_needs(sign_in, what, asked):
    page = sign_in("ada")
    page.goto("/tenants/bulk")
    page.select_option("#f-what", what)
    shown = "fields => fields.filter(field => field.offsetParent).map(field => field.name)"
    assert page.eval_on_selector_all(".when :is(input, select)", shown) == asked


def test_an_admin_edits_a_quota_and_sees_it_arrive(sign_in):
    from fleet_rows import notify, put_server

    from controlplane.policies.models import Tenant

    for name in ("web-1", "web-2", "web-3"):
        put_server(name, revision=3)
    page = sign_in("ada")
    page.goto("/edit/tenant?key=acme-retail")
    page.fill("#f-limit-requests-limit", "1.5")
    page.fill("#f-reason", "Ticket CAP-771")
    page.click("text=Save changes")
    page.wait_for_selector("#f-limit-requests-limit_error")
    assert page.input_value("#f-limit-requests-limit") == "1.5"
    assert page.input_value("#f-reason") == "Ticket CAP-771"
    page.fill("#f-limit-requests-limit", "50")
    page.click("text=Save changes")
    page.wait_for_selector(".saved >> text=Saved as revision")
    revision = Tenant.objects.get(key="acme-retail").changed_revision
    page.wait_for_selector(f"#rollout >> text=Revision {revision}:")
    becomes(page, "document.querySelector('#rollout').textContent.includes('0 of 3')")
    for name in ("web-1", "web-2"):
        put_server(name, revision=revision)
    notify()
    becomes(page, "document.querySelector('#rollout').textContent.includes('2 of 3')")
    assert "web-3" in page.text_content("#rollout")
    put_server("web-3", revision=revision)
    notify()
    page.wait_for_selector("#rollout.is-done")


def test_an_override_works_without_any_script(chromium, web, production):
    context = chromium.new_context(base_url=web, java_script_enabled=False)
    page = context.new_page()
    page.goto("/login")
    page.fill("#id_username", "olga")
    page.fill("#id_password", PASSWORD)
    page.click("button[type=submit]")
    page.goto("/breakers/search")
    choose(page, "act", "forced_open")
    page.fill("#f-reason", "No script at 3 am")
    choose(page, "lasts", "60")
    page.click("#override-form [type=submit]")
    assert "Forced open" in page.text_content("#hero")
    assert "search is forced open until" in page.text_content("#messages")
    context.close()


def test_audit_says_how_many_entries_are_new_and_does_not_move(sign_in):
    from controlplane.breakers import overrides

    page = sign_in("vera")
    page.goto("/audit")
    is_live(page)
    rows = page.locator("tbody tr").count()
    overrides.reset_breaker(
        environment="production",
        dependency="search",
        reason="for a test",
        actor=OLGA,
    )
    page.wait_for_selector("#news >> text=1 new since you opened this page")
    assert page.locator("tbody tr").count() == rows


def test_a_form_without_an_answer_keeps_what_was_typed_and_its_result_is_not_known(sign_in):
    unknown = "It is not known whether your change was made: look at Changes before you submit it again."
    failures = {
        f"Fuseboard cannot be reached. {unknown}": lambda route: route.abort(),
        f"Fuseboard or its database failed. {unknown}": lambda route: route.fulfill(
            status=503, body="<h1>Postgres is unavailable</h1>"
        ),
    }
    failing = []

    def answer(route):
        failing.pop()(route) if failing and route.request.method == "POST" else route.continue_()

    page = sign_in("olga")
    page.route("**/breakers/payments-api", answer)
    page.route("**/breakers/payments-api/preview", lambda route: route.abort())
    page.goto("/breakers/payments-api")
    choose(page, "act", "forced_open")
    note = ".unsent:not([hidden]) >> text="
    # It would change nothing.
    page.wait_for_selector(f"{note}/^Fuseboard cannot be reached. Your input is kept.$/")
    page.unroute("**/breakers/payments-api/preview")
    page.fill("#f-reason", "Typed on a train")
    choose(page, "lasts", "15")
    page.wait_for_selector("text=Force open for 15 min")
    for said, fails in failures.items():
        failing.append(fails)
        page.click("#override button[type=submit]")
        page.wait_for_selector(f"{note}{said}")
        # A preview does not end what is not known.
        with page.expect_response("**/preview"):
            choose(page, "lasts", "60")
        with page.expect_response("**/preview"):
            choose(page, "lasts", "15")
        page.wait_for_selector(f"{note}{said}")
        assert page.input_value("#f-reason") == "Typed on a train"
    assert not failing
    page.click("#override button[type=submit]")
    page.wait_for_selector("#override .notice >> text=payments-api is forced open until")
    page.complaints.clear()  # Chromium and htmx report the two failures that this test causes
