"""Every test that a document names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = {
    page.relative_to(ROOT): found
    for page in (ROOT / "SECURITY.md", ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if (found := re.findall(r"`(tests/[\w/]+\.py)::(?:\w+::)?(test_\w+)`", page.read_text()))
}


@pytest.mark.parametrize("page", NAMED, ids=str)
def test_every_test_that_a_page_names_exists(page: Path):
    for path, name in NAMED[page]:
        assert re.search(rf"^\s*(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (path, name)
