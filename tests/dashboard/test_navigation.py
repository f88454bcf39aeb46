"""The side bar: every page has one place and is one click away; a section counts what waits in it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsing import Clicks, becomes
from django.utils.text import slugify
from positions import boxes_of_all

import dashboard
from controlplane.approvals.pending import Pending
from dashboard.live.frame import Frame
from dashboard.live.pages import counts_of
from dashboard.navigation import SECTIONS, navigation_of
from dashboard.reader import Reader
from dashboard.words.glossary import GLOSSARY
from tests.dashboard.shown import text_of

ENTRIES = [entry for entries in SECTIONS.values() for entry in entries]


def opened(markup: str) -> list[str]:
    nav = markup[markup.index('id="nav"') : markup.index("</nav>")]
    return re.findall(r'<a href="([^"]*)" aria-current="page"', nav)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.view)
def test_every_page_is_marked_in_the_side_bar_and_no_other(log_in: Any, production: str, entry: Any) -> None:
    assert opened(log_in("ada").get(entry.href).content.decode()) == [entry.href]


#: Their heading says what is the case now.
HEADLINES = ("overview", "breakers", "servers", "refusals")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if entry.view not in HEADLINES], ids=lambda entry: entry.view
)
def test_the_heading_of_a_page_is_its_name_in_the_side_bar(log_in: Any, production: str, entry: Any) -> None:
    page = log_in("ada").get(entry.href).content.decode()
    assert [text_of(found).strip() for found in re.findall(r"<h1[^>]*>(.*?)</h1>", page, re.DOTALL)] == [
        entry.name
    ]


@pytest.mark.parametrize(
    ("role", "missing"),
    [
        ("viewer", {"Receivers", "Routes", "Protection", "Drills", "Import", "Freeze edits"}),
        ("operator", {"Receivers", "Protection", "Drills", "Import", "Freeze edits"}),
        ("admin", set()),
    ],
)
def test_readers_see_only_the_pages_that_they_may_open(role: str, missing: set[str]) -> None:
    sections = navigation_of("overview", Reader(name="", role=role), {})
    assert [section["name"] for section in sections] == [
        name for name in SECTIONS if name != "Admin" or role == "admin"
    ]
    shown = {one["entry"].name for section in sections for one in section["entries"]}
    assert {entry.name for entry in ENTRIES} - shown - {"People", "Tokens", "Environment"} == missing


def test_a_section_opens_the_page_of_its_name_where_it_has_one() -> None:
    """ "Incidents" opened Alerts, and Incidents was the second entry below it."""
    for name, entries in SECTIONS.items():
        if name in {entry.name for entry in entries}:
            assert entries[0].name == name


def test_what_waits_is_counted_beside_its_page() -> None:
    # What is approved waits for no decision.
    requests = Pending(open=1, approved=4)
    frame = replace(
        Frame(now=0.0),
        alerts=2,
        alerts_css="st-open",
        incidents=1,
        requests=requests,
        schedules_failed=3,
    )
    counts = counts_of(frame, Reader(name="", role="operator"))
    assert {view: count.number for view, count in counts.items()} == {
        "alerts": 2,
        "incidents": 1,
        "requests": 1,
        "schedules": 3,
    }
    assert "requests" not in counts_of(frame, Reader(name="", role="viewer")), "viewers approve nothing"
    sections = navigation_of("overview", Reader(name="", role="operator"), counts)
    shown = {one["entry"].view for section in sections for one in section["entries"] if one["count"]}
    assert shown == set(counts)
    badges = {section["name"]: [one.number for one in section["counts"]] for section in sections}
    assert badges["Incidents"] == [1], "a section with the name of a page counts what that page lists"
    assert badges["Changes"] == [1, 3]
    # No incident is active, but alerts fire.
    counts.pop("incidents")
    badges = {
        section["name"]: (section["counted"], [one.number for one in section["counts"]])
        for section in navigation_of("overview", Reader(name="", role="operator"), counts)
    }
    assert badges["Incidents"] == ("alerts", [2]), "not two incidents"
    assert badges["Changes"] == ("", [1, 3])


def test_every_word_that_a_page_explains_is_in_the_glossary() -> None:
    templates = Path(dashboard.__file__).parent / "templates"
    linked = {
        word
        for file in templates.rglob("*.html")
        for word in re.findall(r"#word-([a-z-]+)", file.read_text(encoding="utf-8"))
    }
    assert linked >= {"level", "severity"}
    assert linked <= {slugify(word) for word, _ in GLOSSARY}


@pytest.mark.browser
class TestInTheBrowser:
    def test_a_closed_section_flies_out_and_escape_hides_it(self, sign_in: Any, production: str) -> None:
        page = sign_in("ada")
        page.hover("#nav a:has-text('Fleet')")
        assert page.is_visible("#nav a:has-text('Allowed without Redis')")
        page.keyboard.press("Escape")
        assert not page.is_visible("#nav a:has-text('Allowed without Redis')")
        clicks = Clicks(page)
        page.mouse.move(700, 500)
        clicks.in_side_bar("Fleet", "Allowed without Redis")
        page.wait_for_url("**/reconciliation")
        assert clicks.count == 1
        assert page.is_visible("#nav .is-open a:has-text('Pods')"), "an open section displays its pages"

    def test_what_flies_out_lies_above_the_page(self, sign_in: Any, production: str) -> None:
        """A click on Tenants opened the page of the tile below it."""
        page = sign_in("ada")
        page.set_viewport_size({"width": 1440, "height": 900})
        for section in list(SECTIONS)[1:]:
            page.hover(f"#nav > ul > li > a:has-text('{section}')")
            for link in page.locator("#nav li:hover ul a:visible").all():
                box = link.bounding_box()
                assert link.evaluate(
                    "(a, [x, y]) => a.contains(document.elementFromPoint(x, y))",
                    [box["x"] + box["width"] * 0.7, box["y"] + box["height"] / 2],
                ), link.inner_text()

    def test_the_side_bar_of_an_admin_fits_768_pixels(self, sign_in: Any, production: str) -> None:
        page = sign_in("ada")
        page.set_viewport_size({"width": 1280, "height": 768})
        for entries in SECTIONS.values():
            page.goto(entries[0].href)
            assert page.evaluate(
                "document.querySelector('#nav footer').getBoundingClientRect().bottom <= innerHeight"
            )
            assert page.evaluate(
                "document.querySelector('#nav > ul').getBoundingClientRect().bottom"
                " <= document.querySelector('#nav footer').getBoundingClientRect().top"
            )

    def test_a_phone_has_one_line_above_the_content_and_a_menu(self, sign_in: Any, production: str) -> None:
        page = sign_in("ada")
        page.set_viewport_size({"width": 390, "height": 844})
        for path in ("/", "/tenants", "/alerts", "/revisions"):
            page.goto(path)
            assert page.evaluate("document.querySelector('main').getBoundingClientRect().top") <= 100
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.click(".menu")
        page.click("#nav a:has-text('Hot keys')")
        page.wait_for_url("**/hot-keys")
        assert not page.is_visible("#nav")

    def test_a_phone_saves_a_view_beside_the_heading(self, sign_in: Any, production: str) -> None:
        """The button stood alone on a line, on each page of a list."""
        page = sign_in("ada")
        page.set_viewport_size({"width": 390, "height": 844})
        for path in ("/tenants", "/alerts", "/revisions"):
            page.goto(path)
            found = boxes_of_all(page, "main h1", ".views .btn", "main .verdict .btn")
            (heading, *_), (button, *_), others = found
            assert button["y"] < heading["y"] + heading["height"], path
            assert button["y"] + button["height"] > heading["y"], path
            for other in others:
                below = other["y"] >= button["y"] + button["height"]
                assert below or other["x"] + other["width"] <= button["x"], (path, other)

    def test_a_phone_reads_who_made_an_edit_and_why(self, sign_in: Any, production: str) -> None:
        page = sign_in("vera")
        page.set_viewport_size({"width": 390, "height": 844})
        for path in ("/revisions", "/audit", "/changes"):
            page.goto(path)
            row = page.locator("tbody tr:has-text('Tenant added')")
            assert row.locator("text=seed").first.is_visible(), path
            assert row.locator("text=for a test").is_visible(), path
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def test_the_menu_works_at_320_pixels(self, sign_in: Any, production: str) -> None:
        page = sign_in("vera")
        page.set_viewport_size({"width": 320, "height": 225})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.querySelector('main').getBoundingClientRect().top") <= 100
        page.click(".menu")
        becomes(page, "document.querySelector('#nav').getBoundingClientRect().bottom <= innerHeight")

    def test_the_help_menu_leads_to_the_glossary(self, sign_in: Any, production: str) -> None:
        page = sign_in("vera")
        page.click(".help summary")
        page.click(".help a:has-text('Glossary')")
        page.wait_for_url("**/help#glossary")
        assert page.is_visible("dt:has-text('Half-open')")
