"""The audit names the request that made a change, and its trace."""

import csv
import json
import re
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client

from controlplane.accounts.models import User
from controlplane.audit.chain import verify
from controlplane.audit.export import export
from controlplane.audit.models import Entry
from controlplane.editing import edits
from tests.controlplane.audit.test_tokens_in_audit import QUOTA, WHY, token
from tests.controlplane.calling import API, problem, send
from tests.people import SEED, create_people
from tests.squashed import earlier_files

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PATH = f"{API}/tenants/acme/quotas/requests"
IDS = {"X-Request-Id": "edge-7", "traceparent": f"00-{TRACE}-{SPAN}-01"}


@pytest.fixture
def admins(production: str) -> None:
    create_people("ada")


def changed(**headers: str) -> Entry:
    assert send(token(), "PUT", PATH, QUOTA, **headers).status_code == 200
    return Entry.objects.get(action="tenant_quota.set", origin="api")


def test_item_12_an_entry_has_the_request_id_and_the_trace_of_its_request(admins: None) -> None:
    made = changed(**IDS)
    assert (made.request_id, made.trace_id) == ("edge-7", TRACE)
    assert verify()[1] == []


def test_item_12_an_entry_has_the_id_that_web_created(admins: None) -> None:
    answer = send(token(), "PUT", PATH, QUOTA)
    made = Entry.objects.get(action="tenant_quota.set", origin="api")
    assert re.fullmatch(r"[0-9a-f]{32}", made.request_id)
    assert (made.request_id, made.trace_id) == (answer["X-Request-Id"], "")


def test_item_12_all_entries_of_a_form_have_its_id(admins: None, settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = False
    browser = Client()
    browser.force_login(User.objects.get(username="ada"))
    form = {"act": "agent", "environment": "production", "name": "pods", "days": "30", **WHY}
    browser.post("/tokens", form, headers={"x-request-id": "form-1"})
    assert Entry.objects.get(action="agent_token.created").request_id == "form-1"


def test_item_12_a_change_without_a_request_has_no_id(admins: None) -> None:
    edits.create_environment(environment="staging", reason="for a test", actor=SEED)
    assert set(Entry.objects.values_list("request_id", "trace_id")) == {("", "")}


def test_item_12_the_api_finds_the_entries_of_a_request(admins: None) -> None:
    changed(**IDS)
    reader = token(role="viewer", name="reader")
    for query in ("request_id=edge-7", f"trace_id={TRACE}"):
        [found] = send(reader, "GET", f"{API}/audit?{query}").json()["items"]
        assert (found["action"], found["request_id"], found["trace_id"]) == (
            "tenant_quota.set",
            "edge-7",
            TRACE,
        )
    assert send(reader, "GET", f"{API}/audit?request_id=edge").json()["items"] == []
    assert problem(send(reader, "GET", f"{API}/audit?request_id="), 422)


def test_item_12_exports_contain_the_ids(admins: None) -> None:
    changed(**IDS)
    rows = Entry.objects.filter(request_id="edge-7")
    [line] = "".join(export(rows, "jsonl")).splitlines()
    assert {"request_id": "edge-7", "trace_id": TRACE}.items() <= json.loads(line).items()
    [row] = csv.DictReader(StringIO("".join(export(rows, "csv"))))
    assert (row["request_id"], row["trace_id"]) == ("edge-7", TRACE)


def test_item_12_the_page_shows_and_finds_the_request(admins: None, settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = False
    changed(**IDS | {"X-Request-Id": "edge/7+a=b"})
    browser = Client()
    browser.force_login(User.objects.get(username="ada"))
    page = browser.get("/audit").content.decode()
    assert f'title="Request edge/7+a=b, trace {TRACE}"' in page
    link = re.search(r'href="(/audit\?q=edge[^"]*)"', page)
    assert link is not None
    for where in (link[1], f"/audit?q={TRACE}"):
        assert browser.get(where).content.decode().count("<tr data-row") == 1, where


@pytest.mark.parametrize(
    "tamper",
    [
        "UPDATE audit_entry SET request_id = 'another' WHERE request_id = 'edge-7'",
        "UPDATE audit_entry SET trace_id = repeat('0', 32) WHERE request_id = 'edge-7'",
        "UPDATE audit_entry SET request_id = '', trace_id = '' WHERE request_id = 'edge-7'",
        "UPDATE audit_entry SET token = request_id, owner = trace_id, request_id = '', trace_id = ''"
        " WHERE request_id = 'edge-7'",
    ],
)
def test_item_12_the_chain_covers_the_ids(admins: None, tamper: str) -> None:
    changed(**IDS)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_entry DISABLE TRIGGER USER")
        cursor.execute(tamper)
        cursor.execute("ALTER TABLE audit_entry ENABLE TRIGGER USER")
        cursor.execute("ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER pgtrigger_append_only_a6b88")
        cursor.execute("ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER pgtrigger_never_emptied_6c9ae")
    assert ["was changed" in each.why for each in verify()[1]] == [True]


def test_item_12_a_token_cannot_pass_as_a_request_id(admins: None) -> None:
    send(token(), "PUT", PATH, QUOTA)
    with connection.cursor() as cursor:
        cursor.execute("SELECT audit_hash('', e) FROM audit_entry e WHERE owner = 'ada'")
        [(hashed,)] = cursor.fetchall()
        cursor.execute(
            "SELECT audit_hash('', jsonb_populate_record(e, jsonb_build_object('token', '', 'owner', '',"
            " 'request_id', e.token, 'trace_id', e.owner))) FROM audit_entry e WHERE owner = 'ada'"
        )
        assert cursor.fetchall() != [(hashed,)]


def test_item_12_entries_of_before_keep_their_hashes(admins: None) -> None:
    by_token = changed(**IDS)
    before = dict(Entry.objects.filter(pk__lt=by_token.pk).values_list("pk", "hash"))
    assert before
    with earlier_files():
        call_command("migrate", "audit", "0005", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, hash FROM audit_entry")
        assert before.items() <= dict(cursor.fetchall()).items()
    call_command("migrate", "audit", verbosity=0)
    good, broken = verify()
    # Going back drops the two columns, so the entry that had them no longer matches its hash.
    assert [each.entry for each in broken] == [by_token.pk]
    assert good


@pytest.mark.parametrize("field", ["request_id", "trace_id", "token", "owner"])
def test_entries_are_found_by_an_index(production: str, field: str) -> None:
    """The audit is never deleted, so an id that does not exist must not read all of it."""
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute("SET enable_indexscan = on")
        try:
            found = Entry.objects.filter(environment__in=(production, ""), **{field: "nothing"})
            assert f"entry_by_{field}" in found.explain()
        finally:
            cursor.execute("RESET enable_seqscan")
            cursor.execute("RESET enable_indexscan")
