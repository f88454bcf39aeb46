"""What hands do to a page that updates itself: select, open, filter, and type, also without a mouse."""

import re
from typing import Any

import pytest
from browsing import becomes, is_live
from fleet_rows import breaker, notify, put_server

from controlplane.breakers.models import Override

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WHY = "CHG-4821 vendor maintenance"


def report(failures: int, state: str = "closed") -> None:
    """Every pod reports this of payments-api, so that its fragments are sent again."""
    for number in (1, 2, 3):
        views = [breaker("payments-api", state, generation=9, window_failures=failures), breaker("search")]
        put_server(f"web-{number}", breakers=views)
    notify()


def selected(page: Any) -> str:
    return page.evaluate("getSelection().toString()")


def test_selected_text_survives_updates_of_its_fragment(sign_in: Any) -> None:
    page = sign_in("vera")
    page.goto("/breakers/payments-api")
    is_live(page)
    page.evaluate(
        "(() => { const range = document.createRange();"
        " range.selectNodeContents(document.querySelector('#hero h1'));"
        " getSelection().removeAllRanges(); getSelection().addRange(range); })()"
    )
    report(31, "open")
    page.wait_for_selector("#hero.st-open")
    assert selected(page) == "payments-api"
    report(2)
    page.wait_for_selector("#hero.st-closed")
    assert selected(page) == "payments-api"


def test_an_open_menu_and_the_focus_in_it_survive_updates(sign_in: Any) -> None:
    page = sign_in("vera")
    is_live(page)
    page.click(".me summary")
    page.focus(".me-menu a")
    for failures, state in ((31, "open"), (2, "closed")):
        report(failures, state)
        shown = "attached" if state == "open" else "detached"
        page.wait_for_selector("article#br-payments-api", state=shown)
        assert page.is_visible(".me-menu")
        assert page.evaluate("Boolean(document.activeElement.closest('.me-menu'))")


def test_the_open_palette_and_its_choice_survive_updates(sign_in: Any) -> None:
    """With Caps Lock on, Ctrl K did nothing, and the letters typed next were taken as shortcuts."""
    page = sign_in("vera")
    is_live(page)
    page.keyboard.press("Control+K")
    page.keyboard.type("bre")
    page.wait_for_selector("#palette [role=option][aria-selected=true]")
    chosen = page.inner_text("#palette [role=option][aria-selected=true]")
    report(31, "open")
    page.wait_for_selector("article#br-payments-api", state="attached")
    assert page.input_value("#palette input") == "bre"
    assert page.inner_text("#palette [role=option][aria-selected=true]") == chosen
    page.keyboard.press("Escape")


def test_a_filtered_list_stays_filtered_while_its_rows_change(sign_in: Any) -> None:
    page = sign_in("vera")
    page.goto("/breakers")
    is_live(page)
    page.click("[data-filter]")
    page.keyboard.type("sear")
    assert page.is_hidden("#row-payments-api")
    report(31, "open")
    becomes(page, "document.querySelector('#row-payments-api').textContent.includes('Open')")
    assert page.is_hidden("#row-payments-api")
    assert page.is_visible("#row-search")
    page.keyboard.type("ch")
    assert page.input_value("[data-filter]") == "search"


@pytest.fixture
def sockets(page: Any) -> list[Any]:
    """The live sockets of the page, in order, each relayed to the server."""
    relayed: list[Any] = []

    def relay(socket: Any) -> None:
        socket.connect_to_server()
        relayed.append(socket)

    page.route_web_socket(re.compile("/ws/live"), relay)
    return relayed


def test_a_page_whose_socket_is_closed_by_a_restart_shows_what_happened_meanwhile(
    page: Any, sign_in: Any, sockets: list[Any]
) -> None:
    sign_in("vera")
    is_live(page)
    page.evaluate("window.watching = true")
    seen = len(sockets)
    report(31, "open")
    sockets[-1].close(code=1012, reason="restart")
    page.wait_for_selector("article#br-payments-api.st-open")
    is_live(page)
    assert len(sockets) > seen
    assert page.evaluate("window.watching"), "the page was loaded again"


def test_sort_again_is_not_lost_while_the_page_reconnects(
    page: Any, sign_in: Any, sockets: list[Any]
) -> None:
    """A click between two connections did nothing, and the rows kept their order."""
    sign_in("vera")
    page.goto("/breakers")
    is_live(page)
    page.focus("#row-payments-api a")
    for number in (1, 2, 3):
        views = [breaker("payments-api"), breaker("search", "open", generation=9, window_failures=31)]
        put_server(f"web-{number}", breakers=views)
    notify()
    page.wait_for_selector("#row-search.st-open")
    assert page.evaluate("document.querySelector('#rows tr').id") == "row-payments-api"
    page.evaluate(
        """document.addEventListener(
            'htmx:ws:close', () => document.querySelector('[data-resort]').click(), { once: true }
        )"""
    )
    sockets[-1].close(code=1012, reason="restart")
    becomes(page, "document.querySelector('#rows tr').id === 'row-search'")
    assert page.is_hidden("[data-resort]")


def tab_to(page: Any, script: str) -> None:
    """Press Tab until the element that has the focus fits."""
    for _ in range(80):
        if page.evaluate(f"(e => Boolean({script}))(document.activeElement)"):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"Tab does not reach {script}: {page.evaluate('document.activeElement.outerHTML')}")


def test_a_breaker_is_tripped_with_the_keyboard_alone(sign_in: Any) -> None:
    page = sign_in("olga")
    is_live(page)
    tab_to(page, "e.matches('#cards a, #calm a') && e.textContent.includes('payments-api')")
    page.keyboard.press("Enter")
    page.wait_for_url("**/breakers/payments-api")
    is_live(page)
    page.keyboard.press("o")
    tab_to(page, "e.name === 'act'")
    page.keyboard.press("Space")
    assert page.evaluate("document.activeElement.value") == "forced_open"
    tab_to(page, "e.name === 'reason'")
    page.keyboard.type(WHY)
    tab_to(page, "e.name === 'lasts'")
    while page.evaluate("document.querySelector('[name=lasts]:checked').value") != "15":
        page.keyboard.press("ArrowRight")
    report(31, "open")
    page.wait_for_selector("#hero.st-open")
    tab_to(page, "e.matches('#preview button')")
    becomes(page, "document.querySelector('#preview button').innerText.includes('15')")
    # The preview was drawn again: the focus may have gone with the button that it replaced.
    tab_to(page, "e.matches('#preview button')")
    page.keyboard.press("Enter")
    becomes(page, "document.querySelector('#hero').innerText.toLowerCase().includes('forced open')")
    assert Override.objects.get().reason == WHY
    # The socket can display the new state before the answer to the form arrives and puts the focus back.
    becomes(page, "document.activeElement.closest('#override') !== null")
