"""Runs the samples of docs/costs.md, and compares its tables with the code."""

import re
from pathlib import Path

from controlplane.editing.plans import difference, read_plan
from controlplane.spending.fields import COLUMNS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "costs.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_files_of_the_page_can_be_imported(production: str) -> None:
    files = blocks("yaml")
    assert len(files) == 2
    for text in files:
        assert difference(production, read_plan(text)).changes


def test_the_page_has_every_field_of_a_price_and_fits_on_two_screens() -> None:
    assert [column for column in COLUMNS if f"`{column}`" not in PAGE] == []
    assert PAGE.count("\n") <= 120
