"""Addresses of Postgres: several hosts, a pooler, and what a wrong one says."""

import os
import subprocess
import sys
from typing import Any

import psycopg
import pytest
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from psycopg.conninfo import conninfo_to_dict

from controlplane.database_url import TIMEOUTS, as_options, database_of
from controlplane.postgres import conninfo, session_lock, transaction_lock
from tests.controlplane.alerts.stores_down import PROJECT
from tests.controlplane.web_process import database_url

needs_postgres = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("places", "host", "port"),
    [
        ("db1", "db1", ""),
        ("db1:5433", "db1", 5433),
        ("db1:5432,db2:5433", "db1,db2", "5432,5433"),
        ("db1,db2", "db1,db2", "5432,5432"),
        ("db1:6000,db2", "db1,db2", "6000,5432"),
        ("[fd00::1]:5432,10.0.0.2:5432,db3", "fd00::1,10.0.0.2,db3", "5432,5432,5432"),
    ],
)
def test_a_database_address_has_one_or_more_hosts(places: str, host: str, port: object) -> None:
    url = f"postgres://ann:p%40ss%2C@{places}/fuseboard?target_session_attrs=read-write&sslmode=verify-full"
    database = database_of(url, name="DATABASE_URL", pooled=False)
    assert (database["HOST"], database["PORT"], database["NAME"]) == (host, port, "fuseboard")
    assert (database["USER"], database["PASSWORD"]) == ("ann", "p@ss,")
    assert database["OPTIONS"]["target_session_attrs"] == "read-write"
    assert "statement_timeout=5s" in database["OPTIONS"]["options"]
    assert database["OPTIONS"]["keepalives_idle"] == 5


@pytest.mark.parametrize(
    "places", ["db1:x", "db1:5432,", ",db2", "db1:5432,db2:99999", "db1:5432,db2:x", "[fd00::1,db2"]
)
def test_a_wrong_address_is_named_without_its_password(places: str) -> None:
    with pytest.raises(
        ImproperlyConfigured, match=r"DATABASE_URL must be like .*host1:5432,host2:5432"
    ) as error:
        database_of(f"postgres://ann:secret@{places}/fuseboard", name="DATABASE_URL", pooled=False)
    assert "secret" not in str(error.value)


@needs_postgres
def test_the_second_host_is_used_while_the_first_does_not_answer() -> None:
    url = (
        database_url().replace("@127.0.0.1:", "@127.0.0.1:1,127.0.0.1:") + "?target_session_attrs=read-write"
    )
    script = (
        "from django.db import connection as c; k = c.cursor(); k.execute('SELECT 1'); print(k.fetchone()[0])"
    )
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "--verbosity", "0", "-c", script],
        cwd=PROJECT,
        env=os.environ | {"DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


def test_every_connection_notices_that_it_is_cut(settings: Any) -> None:
    """The default of Linux is two hours."""
    for purpose, direct in (("hub", True), ("gateway-rows", False), ("lock", True)):
        found = conninfo_to_dict(conninfo(purpose, direct=direct))
        assert (found["keepalives_idle"], found["tcp_user_timeout"]) == ("5", "5000")
        assert found["application_name"] == f"fuseboard-{purpose}"


def test_only_what_needs_a_session_goes_past_the_pooler(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DATABASE_POOLED = True
    pool = database_of("postgres://ann:x@pool/f", name="", pooled=True)
    monkeypatch.setitem(django_settings.DATABASES, "default", pool)
    settings.DIRECT_DATABASE = database_of("postgres://ann:x@db1,db2/f", name="", pooled=False)
    pooled, direct = (
        conninfo_to_dict(conninfo("gateway", direct=direct, statement_timeout_ms=3_000))
        for direct in (False, True)
    )
    assert (pooled["host"], pooled.get("options")) == ("pool", None)
    assert direct["host"] == "db1,db2"
    assert direct["options"].endswith("-c statement_timeout=3000")


DIRECT = "FUSEBOARD_DIRECT_DATABASE_URL"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"FUSEBOARD_DATABASE_POOLED": "1"}, f"needs {DIRECT}"),
        (
            {"DATABASE_URL": "postgres://pool/one", DIRECT: "postgres://db/two"},
            f"{DIRECT} names database 'two'",
        ),
    ],
)
def test_a_pooler_needs_a_way_past_it_to_the_same_database(given: dict[str, str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import controlplane.settings"],
        cwd=PROJECT,
        env=os.environ | given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert said in done.stderr


def test_past_the_pooler_all_but_the_name_is_of_the_direct_url(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests of Django rename the database, so its name is that of the pages."""
    pool = database_of(
        "postgres://ann:x@pool:6432/f?sslmode=require&gssencmode=disable", name="", pooled=True
    )
    monkeypatch.setitem(django_settings.DATABASES, "default", pool | {"NAME": "test_f"})
    url = "postgres://eve:y@db1:5433/f?sslmode=verify-full&connect_timeout=9"
    settings.DIRECT_DATABASE = database_of(url, name="", pooled=False)
    direct = conninfo_to_dict(conninfo("lock", direct=True))
    wanted = {"host": "db1", "port": "5433", "user": "eve", "password": "y", "dbname": "test_f"}
    wanted |= {"sslmode": "verify-full", "connect_timeout": "9", "options": as_options(TIMEOUTS)}
    assert {name: direct.get(name) for name in wanted} == wanted
    assert "gssencmode" not in direct
    settings.DIRECT_DATABASE = database_of("postgres://db1/f", name="", pooled=False)
    direct = conninfo_to_dict(conninfo("lock", direct=True))
    assert not {"user", "password", "port"} & direct.keys(), "those of the pooler are not sent to Postgres"


@needs_postgres
def test_a_lock_lasts_over_transactions_and_ends_with_its_block() -> None:
    with session_lock(7) as alone, session_lock(7) as other, session_lock(8) as another:
        assert (alone, other, another) == (True, False, True)
    with session_lock("seal"), psycopg.connect(conninfo("test")) as connection:
        # An earlier release takes the lock like this.
        taken = connection.execute("SELECT pg_try_advisory_lock(hashtext('seal'))").fetchone()
        assert taken == (False,)
    with psycopg.connect(conninfo("test")) as connection:
        held = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone()
    assert held == (0,)
    assert django_settings.DIRECT_DATABASE is None


@needs_postgres
@pytest.mark.parametrize(
    ("names", "earlier"),
    [(["deliveries"], "hashtext('deliveries')"), (["alerts", "qa"], "hashtext('alerts'), hashtext('qa')")],
)
def test_a_lock_of_a_transaction_excludes_an_earlier_release_and_ends_with_it(
    names: list[str], earlier: str
) -> None:
    take = f"SELECT pg_try_advisory_lock({earlier})"
    with psycopg.connect(conninfo("test"), autocommit=True) as other:
        with transaction.atomic():
            assert transaction_lock(*names)
            assert transaction_lock("alerts", "production", wait=False)
            assert other.execute(take).fetchone() == (False,)
        assert other.execute(take).fetchone() == (True,)
        with transaction.atomic():
            assert not transaction_lock(*names, wait=False)
