"""CSV of any table of a page: the same rows, columns, filters and rights as the page."""

import csv
import io
import re

import pytest
from test_browser_pages import PAGES

from controlplane.policies.models import Environment, Tenant, Tier
from dashboard.tables import table_files
from dashboard.tables.drawn_table import drawn_table

pytestmark = pytest.mark.django_db(transaction=True)

_NAMED = re.compile(
    r'<section[^>]*aria-labelledby="([\w-]+)"[^>]*>(?:(?!</?section).)*?<table(?![^>]*data-no-file)',
    re.DOTALL,
)


def file(client, address):
    answer = client.get(address)
    assert answer.status_code == 200, answer
    assert answer["Content-Type"].startswith("text/csv"), address
    return list(csv.reader(io.StringIO(b"".join(answer.streaming_content).decode())))


def many_tenants(count):
    tier = Tier.objects.filter(environment="production").first()
    Tenant.objects.bulk_create(
        Tenant(
            environment=Environment.objects.get(pk="production"),
            key=f"many-{number:05}",
            title="=cmd()" if number == 7 else "",
            tier=tier,
            changed_revision=1,
        )
        for number in range(count)
    )


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ("explain", "request", "template")])
def test_every_table_of_every_page_is_a_file(log_in, production, name):
    client = log_in("ada")
    answer = client.get(PAGES[name])
    if answer.status_code != 200:
        pytest.skip("needs more than the usual data")
    for table in _NAMED.findall(answer.content.decode()):
        joint = "&" if "?" in PAGES[name] else "?"
        rows = file(client, f"{PAGES[name]}{joint}csv={table}")
        assert all(rows[0])
        assert {len(row) for row in rows} == {len(rows[0])}


def test_a_list_in_pages_is_followed_to_its_end(log_in, production, monkeypatch):
    many_tenants(130)
    monkeypatch.setattr(table_files, "_PIECE", 60)
    rows = file(log_in("ada"), "/tenants?csv=h-t&q=many")
    assert [row[0] for row in rows[1:]] == [f"many-{number:05}" for number in range(130)]
    assert rows[0][:3] == ["Tenant", "Name", "Tier"]
    assert rows[8][1] == "'=cmd()"


def test_a_file_is_bounded_and_says_so(log_in, production, monkeypatch):
    many_tenants(130)
    monkeypatch.setattr(table_files, "MAX_ROWS", 100)
    rows = file(log_in("ada"), "/tenants?csv=h-t&q=many")
    assert len(rows) == 102
    assert rows[-1] == ["cut: only the first 100 rows"]


def test_all_customers_in_one_file_need_the_right_to_export_them(log_in, production):
    assert log_in("vera").get("/tenants?csv=h-t").status_code == 403
    assert log_in("olga").get("/revisions?csv=h-r").status_code == 403
    assert log_in("vera").get("/people?csv=h-p").status_code == 403
    assert len(file(log_in("vera"), "/breakers?csv=h-b")) == 3


def test_a_file_has_the_filter_and_the_order_of_the_address(log_in, production):
    client = log_in("vera")
    names = [row[1] for row in file(client, "/breakers?csv=h-b&sort=-dependency")[1:]]
    assert names == sorted(names, reverse=True) == ["search", "payments-api"]
    assert [row[1] for row in file(client, "/breakers?csv=h-b&q=SEAR")[1:]] == ["search"]
    assert file(client, "/breakers?csv=h-b&state=open")[1:] == []


def test_what_is_no_table_is_not_found(log_in, production):
    client = log_in("vera")
    assert client.get("/breakers?csv=h-none").status_code == 404
    assert client.get("/breakers?csv=../x").status_code == 404
    assert client.get("/palette?csv=h-b").status_code == 404


def test_who_is_not_logged_in_gets_no_file(client, production):
    assert client.get("/breakers?csv=h-b").status_code == 302


def test_a_drawn_table_is_read_as_text():
    table = drawn_table(
        """<section aria-labelledby="h-x"><table><thead><tr><th>Name</th>
        <th><span class="vh">Actions</span></th><th>When</th><th>Rate</th></tr></thead><tbody>
        <tr><td rowspan="2"><label class="pick"><input type="checkbox"> x</label> a &amp; b
        <svg><title>t</title></svg></td>
        <td><button>Edit</button></td><td>until <time datetime="2030-01-31T18:00:00+01:00">18:00</time></td>
        <td>12,400</td></tr>
        <tr><td></td><td>one<br>two</td><td data-value="0.25"><svg></svg></td></tr>
        <tr><td colspan="4">No more</td></tr></tbody></table>
        <a rel="next" href="?after=a">Next</a></section>
        <section aria-labelledby="h-y"><table><tr><td>1</td></tr></table></section>""",
        "h-x",
    )
    assert table is not None
    assert table.headings == ["Name", "When", "Rate"]
    assert [row.cells for row in table.rows] == [
        ["a & b", "until 2030-01-31T17:00:00Z", "12400"],
        ["a & b", "one; two", "0.25"],
    ]
    assert table.following == "?after=a"
