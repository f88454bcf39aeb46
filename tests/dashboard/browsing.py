"""Waiting for a page, and choosing in its forms."""

import time
from typing import Any


def becomes(page: Any, script: str, seconds: float = 30.0) -> None:
    """Until ``script`` is true. Playwright's own wait needs ``eval``, which our policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(script):
        assert time.monotonic() < deadline, f"never came true: {script}"
        page.wait_for_timeout(50)


def is_live(page: Any) -> None:
    becomes(page, "document.querySelector('#live b').textContent === 'Live'")


def choose(page: Any, name: str, value: str) -> None:
    page.click(f"label:has(input[name='{name}'][value='{value}'])")
