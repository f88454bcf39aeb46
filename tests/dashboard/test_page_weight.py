"""How many bytes the overview costs a browser: a first visit without charts, and a later one."""

import gzip
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.templatetags.static import static

pytestmark = pytest.mark.django_db(transaction=True)

#: Bytes, compressed: what the overview loads without its charts; and the page alone, with files cached.
FIRST_VISIT = 95 * 1024
LATER_VISIT = 12 * 1024
_FILES = re.compile(r'<(?:script|link)[^>]+(?:src|href)="([^"]+\.(?:js|css|woff2))"')
_CHARTS = ("/vendor/uplot/", "/dashboard/chart.")


def test_the_overview_is_light(log_in: Any, capsys: pytest.CaptureFixture[str]) -> None:
    html = log_in("ada").get("/").content.decode()
    prefix = static("")
    found = {path: _size(path.removeprefix(prefix)) for path in dict.fromkeys(_FILES.findall(html))}
    charts = {path: size for path, size in found.items() if any(part in path for part in _CHARTS)}
    page = len(gzip.compress(html.encode(), 6))
    first = page + sum(found.values()) - sum(charts.values())
    with capsys.disabled():
        sys.stdout.write(
            f"\ngzip: first visit {first:,} B, later {page:,} B, charts {sum(charts.values()):,} B\n"
        )
    assert charts, "the overview has charts"
    assert len(found) - len(charts) >= 8
    assert first <= FIRST_VISIT, found
    assert page <= LATER_VISIT


def _size(name: str) -> int:
    # A name with a hash of its content, as the pages refer to files.
    plain = re.sub(r"\.[0-9a-f]{8,}(?=\.\w+$)", "", name)
    place = finders.find(plain)
    assert place, name
    content = Path(place).read_bytes()
    # A font is compressed already.
    return len(content) if name.endswith(".woff2") else len(gzip.compress(content, 6))
