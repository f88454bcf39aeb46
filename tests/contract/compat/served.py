"""Observes a control plane from outside: one small story over the HTTP of its web process and gateway.

It uses the wire of version 0.1.0 and calls no function of the control plane, so that it works with
any version. Other programs depend on the form of the answers.
"""

import json
import secrets
import time
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import digest
from pathlib import Path
from typing import Any, Self

import httpx
import psycopg
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.compat.control_side import celery_app
from tests.contract.compat.processes import EVERY_S, WITHIN_S
from tests.contract.compat.shapes import merged, shape
from tests.waiting import wait_until

_HERE = Path(__file__).parent
SEED = (_HERE / "seed.yaml").read_bytes()
_BEAT = json.loads((_HERE.parent / "golden" / "sync_request.3.json").read_text())
REASON = "to record what is there"

#: Postgres channels that version 0.1.0 has.
CHANNELS = (
    "fuseboard_config",
    "fuseboard_tokens",
    "fuseboard_fleet",
    "fuseboard_logins",
    "fuseboard_breakers",
)
#: What web processes ask gateways: path -> what its signature is salted with.
_SALTS = {
    "/control/v1/fleet": "controlplane.fleet.asking",
    "/control/v1/hold": "controlplane.breakers.handed",
}


@dataclass
class ControlPlane:
    """Where a control plane listens, and what opens it; its database has the environment ``production``."""

    web: str
    gateway: str
    #: Of an admin, in all environments.
    api_token: str
    agent_token: str
    secret_key: str
    database_url: str
    beats: int = 0
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30, trust_env=False))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def call(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> Any:
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.api_token}", "Content-Type": kind}
        answer = self.http.request(method, f"{self.web}/api/v1/{path}", content=content, headers=headers)
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

    def ask_gateway(self, path: str, document: dict[str, Any]) -> Any:
        """Ask as a web process does while Postgres is down."""
        body = json.dumps(document).encode()
        key = sha256((_SALTS[path] + self.secret_key).encode()).digest()
        headers = {
            "Authorization": f"Fuseboard-HMAC {digest(key, body, 'sha256').hex()}",
            "Content-Type": "application/json",
        }
        answer = self.http.post(self.gateway + path, content=body, headers=headers)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def beat(self) -> bool:
        """Say that everything counted has risen since the last time."""
        self.beats += 1
        document = {**_BEAT, "leaving": False, "counters": _times(_BEAT["counters"], self.beats)}
        document |= {"sequence": self.beats, "mode": "shared"}
        headers = {"Authorization": f"Bearer {self.agent_token}"}
        answer = self.http.post(f"{self.gateway}/agent/v1/sync", json=document, headers=headers)
        return answer.status_code == 200

    def apply(self, file: bytes, *, kind: str = "application/yaml") -> None:
        revision = self.call("GET", "production/configuration").json()["revision"]
        self.call("POST", f"production/apply?expected_revision={revision}&reason={REASON}", file, kind=kind)


def observe(plane: ControlPlane) -> dict[str, Any]:
    """Name of the file -> what is in it; texts are files as they are."""
    with psycopg.connect(plane.database_url, autocommit=True) as connection:
        for channel in CHANNELS:
            connection.execute(f"LISTEN {channel}")
        plane.apply(SEED)
        exported = {
            f"export.{kind}": plane.call("GET", f"production/export?format={kind}").text
            for kind in ("yaml", "csv")
        }
        wait_until(plane.beat, "a heartbeat", within_s=WITHIN_S, every_s=EVERY_S)
        _act(plane)
        wait_until(
            lambda: plane.beat() and _figures(plane)["tenants"], "figures", within_s=WITHIN_S, every_s=EVERY_S
        )
        status = _status(plane)
        metrics = {"web": _metrics(plane, plane.web), "gateway": _metrics(plane, plane.gateway), "agent": {}}
        heard = _heard(connection)
    return {**exported, "status_protocol": status, "metrics": metrics, "notify_channels": heard}


def _act(plane: ControlPlane) -> None:
    """So that every channel is used, and every metric has a sample with its labels."""
    call = plane.call
    hold = {"mode": "forced_open", "expires_in_s": 600, "reason": REASON}
    call("POST", "production/breakers/payments-api/hold", hold)
    # Its transition is collected by the worker, which does not run here.
    celery_app().tasks["breakers.collect_transitions"]()
    for name in ("olga", "bob"):
        call("POST", "people", {"username": name, "email": "", "role": "admin", "reason": REASON})
    call("PUT", "people/olga/roles", {"role": "operator", "reason": REASON})
    call("POST", "production/agent-tokens", {"name": "other pods", "expires_in_s": 3600, "reason": REASON})
    call("PUT", "production/approvals", {"needed": 1, "reason": REASON})
    for tier in ("pro", "enterprise"):
        request = call("PUT", "production/configuration/default-tier", {"tier": tier, "reason": REASON})
    call("POST", f"production/requests/{request.json()['id']}/withdraw", {"reason": REASON})


def _question() -> dict[str, Any]:
    return {"environment": "production", "at_us": time.time_ns() // 1000}


def _figures(plane: ControlPlane) -> dict[str, Any]:
    figures: dict[str, Any] = plane.ask_gateway("/control/v1/fleet", _question())["figures"]
    return figures


def _status(plane: ControlPlane) -> dict[str, Any]:
    now_ms = time.time_ns() // 1_000_000
    hold = {
        "id": f"{now_ms:013d}-{secrets.token_hex(8)}",
        "environment": "production",
        "dependency": "model",
        "reason": REASON,
        "expires_at_us": (now_ms + 600_000) * 1000,
        "actor": "olga",
        "role": "operator",
        "origin": "form",
        "address": "192.0.2.1",
    }
    with psycopg.connect(plane.database_url) as connection:
        # A gateway writes an override to Postgres at once. The lock keeps it visible at the gateway.
        connection.execute("LOCK TABLE breakers_override IN ACCESS EXCLUSIVE MODE")
        held = plane.ask_gateway("/control/v1/hold", hold)
        answer = wait_until(lambda: _with_hold(plane), "the override", within_s=WITHIN_S, every_s=EVERY_S)
    question = _question()
    return {
        "POST /control/v1/hold": {"request": shape(hold), "answer": shape(held)},
        "POST /control/v1/fleet": {"request": shape(question), "answer": shape(answer)},
    }


def _with_hold(plane: ControlPlane) -> Any:
    """An answer may be a second old."""
    answer = plane.ask_gateway("/control/v1/fleet", _question())
    return answer if answer["holds"] else None


def _metrics(plane: ControlPlane, url: str) -> dict[str, Any]:
    """Ours, with their type and labels, once each has a sample."""
    token = plane.api_token if url == plane.web else plane.agent_token
    answer = plane.http.get(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    found = {}
    for family in text_string_to_metric_families(answer.text):
        if family.name.startswith("fuseboard_") and not family.name.endswith("_created"):
            labels = {name for sample in family.samples for name in sample.labels} - {"le", "quantile"}
            found[family.name] = {"type": family.type, "labels": sorted(labels)}
    return found


def _heard(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Channel -> the form of what was said on it."""
    heard: dict[str, Any] = {}
    deadline = time.monotonic() + 10
    while heard.keys() != set(CHANNELS) and time.monotonic() < deadline:
        for notice in connection.notifies(timeout=0.1):
            heard[notice.channel] = merged(heard.get(notice.channel), shape(json.loads(notice.payload)))
    return heard


def _times(value: Any, factor: int) -> Any:
    """The same document with every number so many times as large."""
    if isinstance(value, dict):
        return {name: _times(found, factor) for name, found in value.items()}
    if isinstance(value, list):
        return [_times(found, factor) for found in value]
    return value * factor if isinstance(value, int) else value
