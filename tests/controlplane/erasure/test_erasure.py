"""One caller is erased from everything that is stored, and the audit does not say who it was."""

import json
from datetime import timedelta
from hashlib import sha256
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection
from django.test import RequestFactory
from django.utils import timezone

from controlplane.api.http.idempotency import fingerprints_of
from controlplane.api.models import KeptReply
from controlplane.audit.models import Entry
from controlplane.erasure import erase
from controlplane.refusals.models import DigestKey, RefusalSample
from fuseboard.contract.refusal_samples import digest_of
from tests.controlplane.calling import API, send, token_of

TODAY, YESTERDAY, FORGOTTEN = b"t" * 32, b"y" * 32, b"f" * 32
WHY = "privacy request 12"


@pytest.fixture
def keys(production: str) -> None:
    now = timezone.now().date()
    for days, key in enumerate((TODAY, YESTERDAY)):
        DigestKey.objects.create(environment=production, on=now - timedelta(days=days), key=key)


def sample(key: bytes = TODAY, *, environment: str = "production", tenant: str = "", **caller: str) -> int:
    row = RefusalSample.objects.create(
        environment=environment,
        at=timezone.now(),
        service="shop",
        server="web-1",
        reason="quota",
        mode="shared",
        revision=1,
        retry_after_ms=0,
        weight=1.0,
        tenant=tenant,
        rule=caller.pop("rule", "requests"),
        **{column: digest_of(key, column, value) for column, value in caller.items()},
    )
    return int(row.pk)


def left() -> set[int]:
    return set(RefusalSample.objects.values_list("pk", flat=True))


def test_an_address_is_erased_under_every_key_that_is_kept(keys: None, ada: Any) -> None:
    for key in (TODAY, YESTERDAY):
        sample(key, ip="203.0.113.7")
    kept = {
        sample(ip="203.0.113.8"),
        # The same text as another subject, and in another environment.
        sample(user="203.0.113.7"),
        sample(environment="staging", ip="203.0.113.7"),
        # Its key is deleted, so it belongs to no caller any more.
        sample(FORGOTTEN, ip="203.0.113.7"),
    }
    erased = erase(environment="production", kind="ip", value="203.0.113.7", reason=WHY, actor=ada)
    assert (erased.samples, left()) == (2, kept)


def test_the_spellings_of_an_address_are_one_caller(keys: None, ada: Any) -> None:
    sample(ip="203.0.113.7")
    sample(ip="::ffff:203.0.113.7")
    sample(ip="::ffff:cb00:7107")
    sample(ip="0:0:0:0:ffff:0:cb00:7107")
    sample(ip="64:ff9b::203.0.113.7")
    sample(ip="0000:0000:0000:0000:0000:ffff:cb00:7107")
    sample(ip="2001:db8::1")
    sample(ip="2001:db8:0:0:0:0:0:1")
    sample(ip="2001:0db8:0000:0000:0000:0000:0000:0001")
    for value, found in (("::FFFF:203.0.113.7", 6), ("2001:DB8:0::1", 3), ("not an address", 0)):
        erased = erase(environment="production", kind="ip", value=value, reason=WHY, actor=ada)
        assert erased.samples == found, value
    assert left() == set()


def test_an_ipv6_address_is_erased_with_the_network_that_pods_count(keys: None, ada: Any) -> None:
    sample(ip="2001:db8:7:1::/64")
    # These rows are from before the prefix of the environment was changed.
    sample(ip="2001:db8:7::/56")
    kept = {sample(ip="2001:db8:7:100::/64"), sample(ip="2001:db8:8::/56")}
    erased = erase(environment="production", kind="ip", value="[2001:DB8:7:1::9]:443", reason=WHY, actor=ada)
    assert (erased.samples, erased.network, left()) == (2, "2001:db8:7:1::/64", kept)
    assert erased.words == "2 samples of refusals of 2001:db8:7:1::/64, which pods count as one caller"
    assert "2001:db8" not in str(Entry.objects.latest("pk").after)
    assert erase(environment="production", kind="ip", value="192.0.2.7", reason=WHY, actor=ada).network == ""


def test_a_login_and_a_key_are_erased_by_command(keys: None, monkeypatch: Any) -> None:
    sample(user="anna", api_key="k-1")
    other = sample(user="ben", api_key="k-1")
    out = StringIO()
    monkeypatch.setattr("sys.stdin", StringIO("anna\n"))
    call_command("erase_subject", "production", "user", "-", stdout=out)
    assert out.getvalue().startswith("Erased 1 sample of refusals.")
    assert left() == {other}
    call_command("erase_subject", "production", "api_key", "k-1", "--reason", WHY, stdout=out)
    assert left() == set()
    assert set(Entry.objects.filter(action="subject.erased").values_list("reason", flat=True)) == {
        "Erased on the command line.",
        WHY,
    }
    with pytest.raises(CommandError, match="There is no environment"):
        call_command("erase_subject", "nowhere", "user", "anna")


def test_a_tenant_is_erased_from_samples_too(keys: None, ada: Any) -> None:
    sample(tenant="anna@example.com")
    sample(tenant="child", rule="anna@example.com/requests")
    kept = {sample(tenant="anna@example.org"), sample(tenant="x", rule="anna@example.com/team/requests")}
    erased = erase(environment="production", kind="tenant", value="anna@example.com", reason=WHY, actor=ada)
    assert (erased.samples, left()) == (2, kept)


@pytest.mark.parametrize("kind", ["ip", "user", "api_key", "tenant"])
def test_the_audit_does_not_contain_the_caller(keys: None, kind: str) -> None:
    """Nor does the stored reply of an Idempotency-Key, whose digest a list of guesses could find."""
    value = "203.0.113.7"
    sample(**{kind: value})
    token = token_of("admin")
    body = {"kind": kind, "value": value, "reason": WHY}
    answer = send(token, "POST", f"{API}/erasures", body, **{"Idempotency-Key": "once"})
    assert answer.status_code == 200, answer.content
    assert answer.json() == {
        "samples": 1,
        "series": 0,
        "demand": 0,
        "top_lists": 0,
        "without_redis": 0,
        "alerts": 0,
        "views": 0,
        "network": "",
    }
    entry = Entry.objects.latest("id")
    assert entry.action in ("subject.erased", "history.erased")
    assert (entry.reason, entry.after, entry.before) == (WHY, {"samples": 1}, None)
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(e)::text FROM audit_entry e")
        assert not any(value in text for (text,) in cursor.fetchall())
    kept = KeptReply.objects.get()
    assert value not in str(kept.reply)
    # Who guesses the caller computes the same digest of the request, so there must be a key in it.
    digest = sha256(json.dumps(body).encode()).hexdigest()
    guessed = sha256("\n".join(("POST", f"{API}/erasures", "", digest)).encode()).hexdigest()
    request = RequestFactory().post(f"{API}/erasures")
    assert fingerprints_of(request, digest) == (kept.fingerprint, guessed)
    assert kept.fingerprint != guessed
    again = send(token, "POST", f"{API}/erasures", body, **{"Idempotency-Key": "once"})
    assert again.json()["samples"] == 1


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("user", "Anna", "asked by anna in a letter"),
        ("ip", "203.0.113.7", "the owner of ::FFFF:CB00:7107 asked"),
        ("ip", "::ffff:203.0.113.7", "asked from 203.0.113.7."),
        ("ip", "2001:db8::1", "asked by 2001:0db8:0000:0000:0000:0000:0000:0001"),
    ],
)
def test_a_reason_that_names_the_caller_is_refused(keys: None, kind: str, value: str, reason: str) -> None:
    number = sample(**{kind: value})
    body = {"kind": kind, "value": value, "reason": reason}
    answer = send(token_of("admin"), "POST", f"{API}/erasures", body)
    assert answer.status_code == 422
    assert "the audit keeps it forever" in answer.content.decode()
    assert left() == {number}
    assert not Entry.objects.filter(action="subject.erased").exists()


def test_without_its_audit_entry_nothing_is_erased(keys: None, ada: Any, monkeypatch: Any) -> None:
    number = sample(user="anna")

    def broken(**_: Any) -> None:
        raise DatabaseError("no room")

    monkeypatch.setattr("controlplane.erasure.record", broken)
    with pytest.raises(DatabaseError):
        erase(environment="production", kind="user", value="anna", reason=WHY, actor=ada)
    assert left() == {number}
