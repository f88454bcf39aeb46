"""Pages without content, and pages beside the others: findings S3 of the browser review."""

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections
from django.test import AsyncClient
from shown import text_of

from tests.people import create_person

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("path", ["/schedules", "/requests", "/drills"])
def test_a_page_without_rows_displays_no_empty_tables(log_in, path):
    """S3.37: a header row and "None." four times on one page."""
    page = log_in("ada").get(path).content.decode()
    assert "<thead" not in page
    assert text_of(page).count(" No ") <= 3


def test_the_account_and_a_missing_page_keep_the_frame(log_in, client):
    """S3.36: navigation and live counts were lost."""
    for path, status, words in (
        ("/account", 200, "Active sessions"),
        ("/no-such-page", 404, "Page not found"),
    ):
        answer = log_in("vera").get(path)
        page = answer.content.decode()
        assert answer.status_code == status
        assert words in page
        assert 'id="nav"' in page
        # The navigation leads there.
        assert ("Back to the overview" in page) is (status == 404)
    client.logout()
    answer = client.get("/no-such-page")
    assert answer.status_code == 404
    assert 'id="nav"' not in answer.content.decode()
    assert "Page not found" in answer.content.decode()


@pytest.mark.parametrize(("path", "status"), [("/no-such-page", 404), ("/people", 403)])
async def test_an_answer_to_an_error_leaves_no_connection_to_postgres_open(path, status, settings):
    """Django makes it in a thread of the event loop under ASGI, and closes no connection there."""
    settings.SECURE_SSL_REDIRECT = False
    browser = AsyncClient()
    await browser.aforce_login(await sync_to_async(create_person)("vera"))
    answer = await browser.get(path)
    assert answer.status_code == status
    assert 'id="nav"' in answer.content.decode()

    def open_there():
        return connection.connection is not None and not connection.connection.closed

    assert not await asyncio.get_running_loop().run_in_executor(None, open_there)
    await sync_to_async(connections.close_all)()
