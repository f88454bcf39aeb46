"""Documents in the database that a later version reads: recorded as any version writes them.

It works over the HTTP API and reads tables by name, so that it runs with the code of every version.
"""

import json
from datetime import timedelta
from typing import Any

from django.core.management import call_command
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.fleet.models import Server
from tests.contract.compat.served import REASON, SEED
from tests.controlplane.calling import send, token_of

#: Everything that keeps documents which people come back to.
TABLES = (
    "policies_revision",
    "policies_change",
    "approvals_changerequest",
    "approvals_proposedchange",
    "schedules_schedule",
    "drills_drill",
    "api_keptreply",
)
#: Environments with the configuration of ``seed.yaml``: edits need approval in the first one.
REVIEWED, FREE = "production", "staging"
_NUMBERS = {"limit": 4000, "window_s": 60, "burst": 40}
_DRILL = {"kind": "gone", "minutes": 5}
_PLAN = {"tenants": {"acme": {"tier": "free", "quotas": {"requests": {"limit": 9000, "window_s": 60}}}}}
#: Edits of the configuration in ``seed.yaml``: method, address, the resource whose version it names, body.
#: Each is a change request where edits need approval.
_EDITS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("PUT", "tenants/acme/quotas/requests", "tenants/acme", _NUMBERS),
    ("PATCH", "tenants/acme-team", "tenants/acme-team", {"suspended": False}),
    ("PUT", "tiers/free/quotas/requests", "tiers/free", _NUMBERS),
    ("PUT", "templates/standard", "templates/standard", _NUMBERS),
    ("PATCH", "dependencies/payments-api/breaker", "dependencies/payments-api", {"breaker": {"probes": 2}}),
    ("PUT", "dependencies/model/vendor-limits/contract", "dependencies/model", _NUMBERS | {"burst": 1}),
    ("DELETE", "subject-limits/logins", "", {}),
    ("POST", "tenants", "", {"key": "new", "tier": "pro"}),
    ("PUT", "configuration/default-tier", "", {"tier": "pro"}),
    ("PATCH", "configuration/tuning", "", {"tuning": {"store_deadline_us": 5000}}),
    ("POST", "rollback", "configuration", {"to_revision": 1}),
    ("PUT", "approvals", "", {"needed": 0}),
    ("POST", "schedules", "", {"document": _PLAN}),
)
#: Edits of an environment without approvals, whose answers are stored.
_ANSWERED: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("POST", "tenants", "", {"key": "new", "tier": "pro"}),
    ("PUT", "tenants/new/quotas/requests", "tenants/new", _NUMBERS),
    ("POST", "dependencies", "", {"name": "maps", "kind": "external"}),
    ("POST", "breakers/maps/hold", "", {"mode": "forced_open", "expires_in_s": 600}),
    ("POST", "breakers/maps/release", "", {}),
    ("POST", "agent-tokens", "", {"name": "pods", "expires_in_s": 3600}),
    ("POST", "schedules", "", {"document": {"tenants": {"new": {"tier": "free"}}}}),
)


@override_settings(ALLOWED_HOSTS=["testserver"])
def stored() -> dict[str, Any]:
    """Rows by table, and the requests whose answers are stored, by key."""
    prepare(REVIEWED)
    prepare(FREE)
    # Names of the record of version 0.1.0. The people of all other tests are in tests/people.py.
    for name in ("alice", "bob"):
        User.objects.create_user(name, role="admin")
    send_requests = _Requests(token_of("admin"))
    for number, edit in enumerate(_ANSWERED):
        send_requests.edit(FREE, *edit, key=f"answered-{number}")
    send_requests.edit(REVIEWED, "POST", "schedules", "", {"document": _PLAN})
    put_pods(REVIEWED)
    drill = send_requests.edit(REVIEWED, "POST", "drills", "", _DRILL | {"servers": ["web-1", "web-2"]})
    send_requests.edit(REVIEWED, "POST", f"drills/{drill['id']}/end", "", {})
    send_requests.edit(REVIEWED, "POST", "drills", "", _DRILL | {"percent": 50})
    send_requests.edit(REVIEWED, "PUT", "approvals", "", {"needed": 1})
    for number, edit in enumerate(_EDITS):
        send_requests.edit(REVIEWED, *edit, key="" if number else "proposed")
    return {"requests": send_requests.keyed} | {table: rows_of(table) for table in TABLES}


class _Requests:
    """Sends edits, and keeps those with a key."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._due_at = (timezone.now() + timedelta(days=1)).isoformat(timespec="seconds")
        self.keyed: dict[str, Any] = {}

    def edit(
        self, environment: str, method: str, path: str, resource: str, body: dict[str, Any], *, key: str = ""
    ) -> Any:
        path = f"/api/v1/{environment}/{path}"
        if method == "DELETE":
            path, body = f"{path}?reason={REASON}", {}
        else:
            body = {**body, "reason": REASON}
        if path.endswith("/schedules"):
            body["due_at"] = self._due_at
        if resource:
            read = send(self._token, "GET", f"/api/v1/{environment}/{resource}").json()
            name = "revision" if resource == "configuration" else "version"
            body[f"expected_{name}"] = read[name]
        # Sorted, because the record is: the stored fingerprint is of the text.
        text = json.dumps(body, sort_keys=True) if body else None
        answer = send(self._token, method, path, text, **({"Idempotency-Key": key} if key else {}))
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.content}"
        if key:
            self.keyed[key] = {"method": method, "path": path, "body": body, "status": answer.status_code}
        return answer.json()


NO_STREAMS = b"\n    wait_ms: 0\n    first_part_ms: 0\n    between_parts_ms: 0\n    store_wait_ms: 0"


def prepare(environment: str) -> None:
    """An environment with the configuration of ``seed.yaml``, as its second revision."""
    call_command("create_environment", environment)
    token = token_of("admin")
    file = SEED.replace(b"environment: production", f"environment: {environment}".encode())
    # Rows of version 0.1.0 have no protection. It would also be the preset of a new dependency.
    for kind in (b"external", b"llm"):
        file = file.replace(b"    kind: %b\n" % kind, b"    kind: %b\n    protection: off\n" % kind)
    # The preset of a model had no bounds for streams.
    given = b"minimum_calls: 20, window_s: 30}"
    file = file.replace(given, given + NO_STREAMS)
    base = send(token, "GET", f"/api/v1/{environment}/configuration").json()["revision"]
    path = f"/api/v1/{environment}/apply?expected_revision={base}&reason={REASON}"
    answer = send(token, "POST", path, file.decode())
    assert answer.status_code == 200, answer.content


def put_pods(environment: str) -> None:
    """Two pods that report."""
    now = timezone.now()
    for name in ("web-1", "web-2"):
        Server.objects.create(
            environment=environment,
            name=name,
            boot="b" * 8,
            service="web",
            agent_version="1",
            state="online",
            mode="shared",
            mode_since=now,
            config_status="applied",
            config_source="http",
            started_at=now,
            last_seen_at=now,
            due_at=now,
        )


def rows_of(table: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT to_jsonb(t)::text FROM {table} t ORDER BY id")  # noqa: S608 - a constant
        return [json.loads(row) for (row,) in cursor.fetchall()]


def put_row(table: str, row: dict[str, Any]) -> None:
    """Insert a row as it was recorded; later rows get greater ids.

    Columns that came later get their default, as in the migration that added them.
    """
    columns = ", ".join(f'"{name}"' for name in row)
    record = f"jsonb_populate_record(NULL::{table}, %s::jsonb)"
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {record}",  # noqa: S608 - recorded names
            [json.dumps(row)],
        )
        cursor.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), (SELECT max(id) FROM {table}))"  # noqa: S608
        )
