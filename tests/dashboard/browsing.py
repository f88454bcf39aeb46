"""Waiting for a page, and choosing in its forms."""

from typing import Any

from playwright.sync_api import Error

from tests.waiting import wait_until


def becomes(page: Any, script: str, seconds: float = 30.0) -> None:
    """Wait until ``script`` is true. Playwright's own wait needs ``eval``, which our policy forbids.

    A form that was sent may load another page: if the question meets the page that is being left, it is
    asked again on the next one. A test whose page must stay checks that itself.
    """
    wait_until(
        lambda: _now(page, script),
        script,
        within_s=seconds,
        every_s=0.05,
        pause=lambda pause_s: page.wait_for_timeout(1000 * pause_s),
    )


def _now(page: Any, script: str) -> bool:
    try:
        return bool(page.evaluate(script))
    except Error as error:
        # Also when the page is still being parsed and has no such element yet.
        if "context was destroyed" in str(error) or "Cannot read properties of null" in str(error):
            return False
        raise


def is_live(page: Any) -> None:
    """Wait for its updates: of the page, or of the frame if nothing else of the page is live."""
    becomes(
        page,
        "(live => live.hasAttribute('data-frame') ? document.querySelector('#tick').dataset.rev !== '0'"
        " : live.querySelector('b').textContent === 'Live')(document.querySelector('#live'))",
    )


def choose(page: Any, name: str, value: str) -> None:
    page.click(f"label:has(input[name='{name}'][value='{value}'])")


class Clicks:
    """Clicks on a page, counted: what a task costs besides its reason."""

    def __init__(self, page: Any) -> None:
        self.page, self.count = page, 0

    def on(self, selector: str) -> None:
        self.count += 1
        self.page.click(selector)
        # Before its scripts have loaded, a page does not react to what is typed.
        self.page.wait_for_load_state()

    def in_side_bar(self, section: str, name: str) -> None:
        """Open a page of a section that flies out under the pointer: one click."""
        self.page.hover(f"#nav > ul > li > a:has-text('{section}')")
        self.on(f"#nav ul ul a:visible:has-text('{name}')")
