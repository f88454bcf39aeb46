"""Search on the tenants page: what it finds, and that it does so without visiting rows."""

import pytest

from tests.people import SEED
from tests.tenants import create_tenants

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_search_finds_ids_and_names_regardless_of_case(log_in):
    client = log_in("vera")
    many = [("Shop-9", "free", "Blumen Müller"), ("shop-10", "free", "50%_off"), ("shop-11", "free", "")]
    create_tenants(tenants=many, actor=SEED)
    keys = ("Shop-9", "shop-10", "shop-11")
    for query, wanted in (
        ("SHOP-", keys),
        ("blumen mü", ("Shop-9",)),
        ("%25_", ("shop-10",)),
        ("%25", ("shop-10",)),
        ("shop-1150", ()),
        ("9blumen", ()),
    ):
        found = client.get(f"/tenants?q={query}").content.decode()
        assert tuple(key for key in keys if f"key={key}" in found) == wanted, query


def test_a_search_reads_only_an_index(log_in, django_assert_max_num_queries):
    from django.db import connection, transaction

    client = log_in("vera")
    with django_assert_max_num_queries(55) as queries:
        client.get("/tenants?q=retail")
    [search] = [found["sql"] for found in queries.captured_queries if "STRPOS" in found["sql"]]
    with connection.cursor() as cursor:
        # A plan depends on what Postgres last counted, and on pages that it knows to be visible to all.
        cursor.execute("VACUUM (ANALYZE) policies_tenant")
    with transaction.atomic(), connection.cursor() as cursor:
        # Postgres prefers to read all of a few rows. The test asks whether the index alone can answer.
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        cursor.execute("EXPLAIN " + search.replace("%", "%%"), [])
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index Only Scan using tenant_searched" in plan, plan
