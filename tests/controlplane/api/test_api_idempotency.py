"""A write that is sent twice is made once."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, close_old_connections, connection, connections, transaction
from django.utils import timezone
from ninja import NinjaAPI

from controlplane.accounts.models import AgentToken
from controlplane.api.http import idempotency
from controlplane.api.models import KeptReply, forget_old_replies
from controlplane.audit.models import Entry
from controlplane.policies.models import Environment, TenantQuota
from tests.controlplane.calling import API, problem, send, token_of

QUOTA = f"{API}/tenants/acme/quotas/requests"
GOOD = {"limit": 50, "window_s": 60, "burst": 5, "expected_version": 1, "reason": "agreed with acme"}
KEY = {"Idempotency-Key": "3fa1c0de-1"}


def revision() -> int:
    return Environment.objects.get(pk="production").revision


def test_a_repetition_gets_the_first_reply_and_changes_nothing(call: Any) -> None:
    first = call("admin", "PUT", QUOTA, GOOD, **KEY)
    assert first.status_code == 200
    assert "Idempotency-Replayed" not in first
    assert "Idempotent-Replayed" not in first
    again = call("admin", "PUT", QUOTA, GOOD, **KEY)
    assert (again.status_code, again.json()) == (200, first.json())
    assert again["Idempotency-Replayed"] == again["Idempotent-Replayed"] == "true"
    assert revision() == first.json()["revision"]
    assert Entry.objects.filter(action="tenant_quota.set").count() == 1


def test_a_repetition_keeps_the_status(call: Any) -> None:
    body = {"key": "new", "tier": "free", "reason": "for a test"}
    statuses = [call("admin", "POST", f"{API}/tenants", body, **KEY).status_code for _ in range(2)]
    assert statuses == [201, 201]
    problem(call("admin", "POST", f"{API}/tenants", body), 422)


def test_a_repetition_gets_a_reply_that_was_made_from_a_row(call: Any) -> None:
    """The stored reply has the values that its schema reads from a row."""
    why = {"reason": "for a test"}
    hook = {"name": "hook", "url": "https://hooks.example.com/x"}
    assert call("admin", "POST", f"{API}/receivers", hook | why).status_code == 201
    for place, (path, body) in enumerate(
        [
            ("receivers/hook/test", {}),
            ("mutes", {"rule": "worker-away", "minutes": 60} | why),
        ]
    ):
        key = {"Idempotency-Key": f"of-a-row-{place}"}
        first, again = (call("admin", "POST", f"{API}/{path}", body, **key) for _ in range(2))
        assert first.status_code < 300, first.content
        assert (again.status_code, again.json()) == (first.status_code, first.json())
        assert again["Idempotency-Replayed"] == "true"


def test_an_edit_whose_answer_failed_may_have_been_made(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = NinjaAPI.create_response

    def lost(*given: Any, **named: Any) -> Any:
        """The edit is stored by now."""
        monkeypatch.setattr(NinjaAPI, "create_response", made)
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(NinjaAPI, "create_response", lost)
    document = problem(call("admin", "PUT", QUOTA, GOOD, **KEY), 503)
    assert document["detail"].startswith("Postgres is down or too slow. It is not known whether a change was")
    again = call("admin", "PUT", QUOTA, GOOD, **KEY)
    assert (again.status_code, again["Idempotency-Replayed"]) == (200, "true")
    # A request that only reads has changed nothing.
    monkeypatch.setattr(NinjaAPI, "create_response", lost)
    document = problem(call("admin", "GET", f"{API}/tenants/acme"), 503)
    assert document["detail"] == "Postgres is down or too slow. Try again in a few seconds."


OTHERS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    (QUOTA, GOOD | {"limit": 51}, {}),
    (f"{QUOTA}2", GOOD, {}),
    (QUOTA, GOOD, {"If-Match": '"1"'}),
]


def test_a_key_belongs_to_one_request(call: Any) -> None:
    call("admin", "PUT", QUOTA, GOOD, **KEY)
    for path, body, headers in OTHERS:
        document = problem(call("admin", "PUT", path, body, **KEY, **headers), 422)
        assert document["type"] == "urn:fuseboard:problem:idempotency-key-reused"
    assert TenantQuota.objects.get().limit == 50


def test_keys_of_two_callers_are_independent(call: Any) -> None:
    call("admin", "PUT", QUOTA, GOOD, **KEY)
    answer = send(token_of("admin"), "PUT", QUOTA, GOOD | {"limit": 51, "expected_version": 2}, **KEY)
    assert answer.status_code == 200
    assert TenantQuota.objects.get().limit == 51


def test_a_refused_edit_takes_no_key(call: Any) -> None:
    problem(call("admin", "PUT", QUOTA, GOOD | {"expected_version": 7}, **KEY), 409)
    problem(call("admin", "PUT", QUOTA, GOOD | {"limit": -1}, **KEY), 422)
    problem(call("viewer", "PUT", QUOTA, GOOD, **KEY), 403)
    assert not KeptReply.objects.exists()
    assert call("admin", "PUT", QUOTA, GOOD, **KEY).status_code == 200


def test_a_malformed_key_is_refused(call: Any) -> None:
    for key in ["", "a b", "k" * 201, "one, two", "schl\u00fcssel", "a\tb"]:
        problem(call("admin", "PUT", QUOTA, GOOD, **{"Idempotency-Key": key}), 400)
    assert not TenantQuota.objects.exists()


def test_a_crash_before_the_commit_leaves_neither_edit_nor_reply(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(reply: Any) -> Any:
        raise SystemExit("killed")

    before = revision()
    monkeypatch.setattr(idempotency, "_kept_form", crash)
    with pytest.raises(SystemExit):
        call("admin", "PUT", QUOTA, GOOD, **KEY)
    monkeypatch.undo()
    assert (revision(), KeptReply.objects.count(), TenantQuota.objects.count()) == (before, 0, 0)
    again = call("admin", "PUT", QUOTA, GOOD, **KEY)
    assert again.json()["revision"] == revision() == before + 1
    assert "Idempotency-Replayed" not in again


def test_many_at_once_make_one_edit(call: Any) -> None:
    token, before = token_of("admin"), revision()
    answers: list[Any] = []

    def ask() -> None:
        answers.append(send(token, "PUT", QUOTA, GOOD, **KEY))
        connections.close_all()

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A busy Postgres may accept no connection in time. Such a request made nothing, and says so.
    assert {answer.status_code for answer in answers} <= {200, 409, 503}
    made = {answer.json()["revision"] for answer in answers if answer.status_code == 200}
    assert made == {before + 1} == {revision()}
    replayed = [answer for answer in answers if answer.get("Idempotency-Replayed")]
    assert len(replayed) == len([answer for answer in answers if answer.status_code == 200]) - 1
    for answer in answers:
        if answer.status_code == 409:
            assert answer["Retry-After"] == "1"


def test_a_request_that_waits_too_long_for_the_first_gets_409(call: Any) -> None:
    token = token_of("admin")
    selector = token.split("_")[1]
    begun, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            KeptReply.objects.create(caller=f"token:{selector}", key=KEY["Idempotency-Key"], fingerprint="x")
            begun.set()
            ended.wait(20)
            transaction.set_rollback(True)
        connections.close_all()

    holder = threading.Thread(target=hold)
    holder.start()
    assert begun.wait(5)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
        document = problem(send(token, "PUT", QUOTA, GOOD, **KEY), 409)
        assert document["type"] == "urn:fuseboard:problem:in-progress"
    finally:
        ended.set()
        holder.join()
        close_old_connections()
        connection.close()
    assert send(token, "PUT", QUOTA, GOOD, **KEY).status_code == 200


def test_a_key_expires_after_a_day(call: Any) -> None:
    call("admin", "PUT", QUOTA, GOOD, **KEY)
    KeptReply.objects.update(created_at=timezone.now() - timedelta(hours=23, minutes=59))
    assert call("admin", "PUT", QUOTA, GOOD, **KEY)["Idempotency-Replayed"] == "true"
    KeptReply.objects.update(created_at=timezone.now() - timedelta(hours=24, minutes=1))
    problem(call("admin", "PUT", QUOTA, GOOD, **KEY), 409)
    call("admin", "PUT", QUOTA, GOOD | {"expected_version": 2}, **KEY)
    assert forget_old_replies() == 0
    KeptReply.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert forget_old_replies() == 1


def test_a_request_is_repeated_after_the_secret_key_was_replaced(call: Any, settings: Any) -> None:
    first = call("admin", "PUT", QUOTA, GOOD, **KEY)
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another secret key, long enough for everything that signs with it"
    again = call("admin", "PUT", QUOTA, GOOD, **KEY)
    assert (again.status_code, again.json()) == (200, first.json())
    assert again["Idempotency-Replayed"] == "true"


def test_the_secret_of_a_token_is_not_stored(call: Any) -> None:
    body = {"name": "shop pods", "expires_in_s": 86_400, "reason": "for the shop"}
    first = call("admin", "POST", f"{API}/agent-tokens", body, **KEY).json()
    assert first["token"].startswith(f"fb_{first['selector']}_")
    assert first["token"].split("_")[2] not in str(KeptReply.objects.values().get())
    again = call("admin", "POST", f"{API}/agent-tokens", body, **KEY).json()
    assert again == first | {"token": None}
    assert AgentToken.objects.count() == 1
