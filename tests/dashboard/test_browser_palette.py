"""The command palette in a browser: it finds what is mistyped, fills forms in, and is a correct combobox."""

import re

import pytest
from browsing import becomes

from controlplane.editing import edits
from tests.people import ADA

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

OPTIONS = "[...document.querySelectorAll('#pal-list [role=option] .pal-name')].map(e => e.textContent)"
NAMES = ("Manage Extensions", "Suspend acme", "Explain a refusal", "Quota of free", "Freeze edits", "Drills")


def opened(page):
    page.keyboard.press("Control+k")
    becomes(page, "document.querySelectorAll('#pal-list [role=option]').length > 0")


def typed(page, text):
    page.fill("#palette input", text)
    return page.evaluate(OPTIONS)


def with_entries(page, names):
    """Answer with these pages and breakers. Call it before a page opens.

    Chromium confirms an interception before a page that is open already knows it.
    """
    entries = [
        {"id": f"page:{name}", "name": name, "hint": "Test", "href": "/", "glyph": "ok"} for name in names
    ]
    breaker = {"id": "breaker:payments-api", "name": "payments-api", "hint": "Breaker", "href": "/"}
    search = breaker | {"id": "breaker:search", "name": "search"}

    def answer(route):
        found = [] if "?" in route.request.url else [*entries, breaker, search]
        route.fulfill(json={"entries": found, "verbs": []})

    page.route(re.compile(r"/palette(\?.*)?$"), answer)  # not its script


def test_the_palette_finds_what_is_mistyped_and_nothing_scattered(page, sign_in):
    """S2.19: only exact parts of a name were found."""
    with_entries(page, NAMES)
    sign_in("vera")
    opened(page)
    for wrong, meant in (
        ("paymnets", "payments-api"),
        ("susepnd", "Suspend acme"),
        ("explian", "Explain a refusal"),
        ("qouta", "Quota of free"),
        ("serach", "search"),
        ("freze", "Freeze edits"),
        ("drlil", "Drills"),
    ):
        assert typed(page, wrong)[0] == meant, wrong
    only_search = ["Search tenants for \u201ceee\u201d"]
    assert typed(page, "eee") == only_search, "letters scattered over a name are no match"
    assert len(typed(page, "suspend drills")) == 1, "all words must match"
    assert typed(page, "me")[0] == "Manage Extensions", "initials"


def test_exact_words_come_before_parts_and_slips(page, sign_in):
    with_entries(page, ("Quotas", "Quota", "A unquota", "Quote"))
    sign_in("vera")
    opened(page)
    assert typed(page, "quota")[:3] == ["Quota", "Quotas", "A unquota"]
    assert typed(page, "quota")[3] == "Quote"


def test_a_command_that_writes_opens_its_form_filled_in(sign_in):
    page = sign_in("olga")
    opened(page)
    assert typed(page, "hold open payments-api 5m")[0] == "Force open payments-api for 5 min"
    page.keyboard.press("Enter")
    page.wait_for_url("**/breakers/payments-api?act=forced_open&lasts=5#override")
    assert page.is_checked("input[name=act][value=forced_open]")
    assert page.is_checked("input[name=lasts][value='5']")
    becomes(page, "document.activeElement.name === 'reason'")
    assert "Force open for 5 min" in page.text_content("#preview button")


def test_tenants_are_searched_on_the_server_and_verbs_apply_to_them(sign_in):
    page = sign_in("ada")
    opened(page)
    page.keyboard.type("suspend acme")
    becomes(page, f"{OPTIONS}[0] === 'Suspend acme-retail'")
    page.keyboard.press("Enter")
    page.wait_for_url("**/edit/tenant?key=acme-retail&own.suspended=yes")


def test_what_changes_something_is_found_by_the_beginnings_of_its_words_alone(sign_in):
    """The typed word "spend" found Force closed, by its search word "send": a slip of one letter."""
    page = sign_in("ada")
    opened(page)
    for other in ("spend", "orce open", "fos", "clsoed payments-api", "fprced open"):
        found = typed(page, other)
        assert not [name for name in found if name.startswith(("Force", "Reset", "End", "Extend"))], other
    assert typed(page, "forc op pay")[0] == "Force open payments-api"
    assert typed(page, "add dep")[0] == "Add dependency"
    assert typed(page, "paymnets")[0] == "payments-api", "a page takes a slip"
    assert "Force open payments-api" not in typed(page, "form"), "the hint is no word of a command"


def test_the_words_of_a_task_find_its_form_or_its_page(sign_in, production):
    common = {"environment": production, "reason": "for a test", "actor": ADA}
    edits.set_budget(
        budget="acme-day", tenant="acme-retail", amount=5_000_000, period="day", expected_version=0, **common
    )
    page = sign_in("ada")
    opened(page)
    for word, names in (
        ("raise", {"Raise budget acme-day", "Budgets", "Edit tier pro"}),
        ("suspend", {"Tenants", "Bulk edit tenants"}),
        ("price", {"Models"}),
        (
            "budget",
            {"Budgets", "Add budget in USD", "Add budget of calls or tokens", "Raise budget acme-day"},
        ),
        ("spend", {"Costs", "Budgets", "Add budget in USD", "Raise budget acme-day"}),
        ("costs", {"Costs", "Budgets"}),
        ("revoke", {"Tokens"}),
    ):
        assert names <= set(typed(page, word)), word
    assert typed(page, "raise acme")[0] == "Raise budget acme-day"
    page.keyboard.press("Enter")
    page.wait_for_url("**/budgets/of/acme-day")
    assert page.is_visible("text=Raise for a time")


def test_a_viewer_gets_no_command_that_changes_something(sign_in):
    page = sign_in("vera")
    opened(page)
    assert "payments-api" in typed(page, "payments-api")
    for text in ("force open payments-api", "reset search", "add tenant", "freeze edits"):
        assert len(typed(page, text)) == 1, text  # the search for tenants


def test_the_palette_is_a_correct_combobox(sign_in):
    page = sign_in("vera")
    page.focus("[data-open=palette]")
    page.keyboard.press("Enter")
    becomes(page, "document.querySelectorAll('#pal-list [role=option]').length > 0")
    named = (
        "document.getElementById(document.querySelector('#palette input')"
        ".getAttribute('aria-activedescendant'))?.getAttribute('aria-selected') === 'true'"
    )
    for text in ("b", "br", "zzzz", ""):
        typed(page, text)
        assert page.evaluate(named), text
    page.keyboard.press("ArrowDown")
    assert page.evaluate(named)
    assert page.get_attribute("#palette input", "aria-activedescendant") == "pal-1"
    typed(page, "zzzz")
    assert page.text_content("#pal-count") == "1 result"
    assert page.evaluate(
        "[...document.querySelectorAll('#pal-list > *')].every("
        "e => e.getAttribute('role') === 'group' && e.getAttribute('aria-label'))"
    )
    page.keyboard.press("Escape")
    assert page.input_value("#palette input") == ""
    assert page.evaluate("document.querySelector('#palette').open")
    page.keyboard.press("Escape")
    becomes(page, "!document.querySelector('#palette').open")
    assert page.evaluate("document.activeElement.dataset.open") == "palette"


def test_the_theme_changes_at_once_and_is_recent_afterwards(sign_in):
    page = sign_in("vera")
    opened(page)
    typed(page, "dark")
    page.keyboard.press("Enter")
    becomes(page, "document.documentElement.dataset.theme === 'light'")
    becomes(page, "!document.querySelector('#palette').open")
    opened(page)
    becomes(page, f"{OPTIONS}[0] === 'Switch theme'")
    assert page.get_attribute("#pal-list > *", "aria-label") == "Recent"
