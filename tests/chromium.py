"""The browser of the tests: a real one, without windows."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: The shell has no window to draw around a page, which halves what a page costs.
_PATHS = (
    "/usr/bin/chromium-headless-shell",
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
)


@contextmanager
def running_chromium() -> Iterator[Any]:
    """Skips the test where none is installed, except in CI."""
    path = next((path for path in _PATHS if Path(path).exists()), None)
    if path is None:
        message = "needs Chromium: install it with `apt-get install chromium`"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright keeps a loop in this thread, and Django would take each query for one made inside it.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
