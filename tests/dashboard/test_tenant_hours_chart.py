"""The page of a tenant that is never among the busiest: its hours are known, and labelled as hours."""

from datetime import timedelta
from typing import Any

import pytest
from browsing import becomes
from django.db import connection
from django.utils import timezone

from controlplane.series.kinds import ABOUT_HOUR, tenant_number, tenant_part
from tests.controlplane.series.test_series_sealing import writer

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

SAID = "document.querySelector('#chart-tenant-hours .chart-say').textContent"


def seed(tenant: str) -> None:
    """7,200 requests in each of 20 hours, but for 3 that no gateway measured and 1 without requests."""
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    number, g1 = tenant_number(tenant), writer()
    with connection.cursor() as cursor:
        for back in range(1, 21):
            if back in (5, 6, 7):
                continue
            at = now - timedelta(hours=back)
            rows: list[list[Any]] = [[ABOUT_HOUR, [], [], []]]
            if back != 10:
                rows.append([tenant_part(number), [number], [7_200], [720]])
            for part, ids, asked, refused in rows:
                cursor.execute(
                    "INSERT INTO series_tenant_hour VALUES (%s, %s, %s, 3600, false, %s, %s, %s)",
                    [part, at, g1, ids, asked, refused],
                )


def test_hours_are_drawn_and_unknown_ones_are_said(production: str, sign_in: Any) -> None:
    seed("acme-retail")
    page = sign_in("vera")
    # An hour has one point: whatever the range of the other charts, this one displays a week or more.
    page.goto("/tenant?key=acme-retail")
    becomes(page, "document.querySelector('#chart-tenant-hours canvas') !== null")
    becomes(page, f"{SAID}.includes('highest')")
    said = page.evaluate(SAID)
    assert "asked, mean of the hour: highest 2/s" in said
    assert "refused: highest 0.2/s" in said
    assert "Points of 60 min" in said
    assert "unknown for " in said
    assert page.inner_text("#chart-tenant-hours figcaption b") == "Requests, hourly"
    # It is not among the busiest, so its finer points are unknown.
    becomes(
        page, "document.querySelector('#chart-tenant .chart-say').textContent.includes('Nothing is known')"
    )
    page.click("#chart-tenant-hours summary")
    becomes(page, "document.querySelectorAll('#chart-tenant-hours td').length > 30")
    cells = page.locator("#chart-tenant-hours tbody tr").all_inner_texts()
    assert sum("unknown" in line for line in cells) >= 3
    assert sum("\t0/s\t0/s" in line for line in cells) == 1
