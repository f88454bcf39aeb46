"""What readers ask of their browser: the colours of their system, and no motion."""

import pytest
from test_browser_pages import PAGES

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

#: Elements that move or fade for longer than a frame.
MOVING = """() => [...document.querySelectorAll("*")].filter(e => {
  const style = getComputedStyle(e), longest = text => Math.max(...text.split(",").map(parseFloat));
  return longest(style.transitionDuration) > 0.02
    || style.animationName !== "none" && longest(style.animationDuration) > 0.02;
}).map(e => e.outerHTML.slice(0, 80))"""
#: The pairs of a page: what is chosen, and the same kind of control that is not.
CHOICES = {
    "breakers": (".chip[aria-pressed=true]", ".chip[aria-pressed=false]"),
    "breaker": (".chip[aria-current]", "a.chip:not([aria-current])"),
    "tenants": (".nav a[aria-current]", ".nav a:not([aria-current])"),
}
#: Every kind of page: live, a list, a form, steps, charts.
LOOKED_AT = (
    *("overview", "breakers", "breaker", "servers", "tenants", "edit", "refusals", "alerts", "mutes"),
    *("receivers", "incident", "incident_report", "runbook", "reconciliation", "explain_sample"),
)
COLOUR = "e => getComputedStyle(e).backgroundColor"


def test_nothing_moves_for_a_reader_who_asks_for_less_motion(page, sign_in, something_everywhere):
    page.emulate_media(reduced_motion="reduce")
    sign_in("ada")
    moving = {}
    for name in LOOKED_AT:
        page.goto(PAGES[name], wait_until="domcontentloaded")
        moving[name] = page.evaluate(MOVING)
    assert not any(moving.values()), moving


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_box_is_a_field_in_both_themes_unless_it_is_disabled(sign_in, production, theme):
    """In the dark theme, the box of the browser was grey, and the disabled one of a runbook hollow."""
    page = sign_in("ada")
    page.goto("/tenants")
    page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
    box = page.locator("[data-select-all]")
    field = page.locator("input[name=q]").evaluate(COLOUR)
    page.mouse.move(0, 0)
    assert box.evaluate(COLOUR) == field
    box.check()
    assert box.evaluate(COLOUR) not in (field, "rgba(0, 0, 0, 0)")
    box.uncheck()
    border = box.evaluate("e => getComputedStyle(e).borderStyle")
    box.evaluate("e => { e.disabled = true; }")
    assert box.evaluate("e => getComputedStyle(e).borderStyle") != border


def test_the_colours_of_the_system_show_what_is_chosen(page, sign_in, something_everywhere):
    page.emulate_media(forced_colors="active")
    sign_in("olga")
    for name, (chosen, other) in CHOICES.items():
        page.goto(PAGES[name])
        assert page.eval_on_selector(chosen, COLOUR) != page.eval_on_selector(other, COLOUR), name
    page.goto(PAGES["breaker"])
    page.check("#override input[name=act][value=extend]", force=True)
    checked = page.eval_on_selector(".seg label:has(:checked)", COLOUR)
    assert checked != page.eval_on_selector(".seg label:not(:has(:checked))", COLOUR)
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
