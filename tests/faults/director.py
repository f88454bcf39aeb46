"""The editors: a process that edits, reading one JSON object per line from stdin.

It first fills an empty database, and then writes ``{"token": ...}``.
``{"edit": name, "with": {...}}`` calls a named edit function and returns its revision; a ``fault``
kills this process, or a reconciler, at the worst moment.
"""

import json
import os
import secrets
import signal
import sys
from datetime import timedelta
from typing import Any

import django

django.setup()

from django.utils import timezone  # noqa: E402

from controlplane.accounts.models import User  # noqa: E402
from controlplane.accounts.tokens import create_agent_token, revoke_token  # noqa: E402
from controlplane.alerts.delivery import receivers  # noqa: E402
from controlplane.audit.actor import Actor  # noqa: E402
from controlplane.breakers import overrides  # noqa: E402
from controlplane.drills import edits as drills  # noqa: E402
from controlplane.editing import edits  # noqa: E402
from controlplane.policies.document import environment_of  # noqa: E402
from controlplane.policies.models import Environment  # noqa: E402
from controlplane.publishing import publish  # noqa: E402
from controlplane.repair import tasks  # noqa: E402
from controlplane.schedules import edits as schedules  # noqa: E402
from controlplane.usage.budgets import budgets  # noqa: E402
from tests.faults import world  # noqa: E402
from tools.demo.scenario import TUNING  # noqa: E402

DIRECTOR = Actor(name="director", role="admin", origin="command")
USUAL: dict[str, Any] = {
    "environment": world.ENVIRONMENT,
    "reason": "Part of a fault test",
    "actor": DIRECTOR,
}


def fill() -> None:
    """Tenants and dependencies of every kind that rows use."""
    edits.create_environment(**USUAL)
    edits.set_tuning(tuning=TUNING, **USUAL)
    for tenant, quota in world.TENANTS.items():
        edits.create_tenant(tenant=tenant, tier="pro", **USUAL)
        edits.set_tenant_quota(tenant=tenant, quota="requests", expected_version=None, **quota, **USUAL)
    for dependency, limit in world.DEPENDENCIES.items():
        edits.create_dependency(
            dependency=dependency,
            kind="internal",
            title=dependency,
            owner="",
            fallback_note="",
            timeout_ms=2_000,
            protection="off",
            runbook=None,
            breaker=world.BREAKER,
            **USUAL,
        )
        if limit is not None:
            edits.set_vendor_limit(dependency=dependency, expected_version=None, **limit, **USUAL)


def do(command: dict[str, Any]) -> object:
    if "edit" in command:
        return _edit(command["edit"], command.get("with", {}))
    if command["do"] == "head":
        row = environment_of(world.ENVIRONMENT)
        return [row.epoch, row.revision]
    if command["do"] == "spent":
        return _spent(command["budget"])
    if command["do"] == "waiting":
        return publish.OutboxEntry.objects.filter(published_at__isnull=True).count()
    if command["do"] == "reconcile":
        for _ in range(command["times"]):
            tasks.reconcile_environment(world.ENVIRONMENT)
        return None
    if command["do"] == "die":
        setattr(publish, command["before"], _die)
        return _edit(command["edit_then"], command["with"])
    if command["do"] == "drill":
        chosen = drills.Chosen(servers=command["servers"])
        return drills.begin_drill(kind="gone", minutes=command["minutes"], chosen=chosen, **USUAL).pk
    if command["do"] == "schedule":
        due_at = timezone.now() + timedelta(minutes=command["minutes"])
        return schedules.schedule_change(due_at=due_at, document=command["document"], **USUAL).pk
    if command["do"] == "end-drill":
        return drills.end_drill(drill=command["drill"], **USUAL).pk
    if command["do"] == "environment":
        return _environment(command["name"])
    if command["do"] == "revoke-token":
        revoke_token(selector=command["token"].split("_")[1], reason=USUAL["reason"], actor=DIRECTOR)
        return None
    if command["do"] == "receiver":
        named = {"name": command["name"], "url": command["url"]}
        receivers.add_receiver(**named, least_level=2, least_severity="warning", **USUAL)
        return None
    if command["do"] == "remove-receiver":
        receivers.remove_receiver(name=command["name"], **USUAL)
        return None
    if command["do"] == "shift-clock":
        _shift_clock(command["seconds"])
        return None
    raise ValueError(f"nobody knows how to {command}")


def _edit(name: str, arguments: dict[str, Any]) -> int:
    if name == "override_breaker":
        arguments["expires_at"] = timezone.now() + timedelta(seconds=arguments.pop("lasts_s"))
    function = getattr(overrides, name, None) or getattr(edits, name)
    revision: int = function(**arguments, **USUAL)
    return revision


def _spent(budget: str) -> int | None:
    """What Redis has counted of a budget in its present period."""
    found = budgets(world.ENVIRONMENT, set(), now=timezone.now().timestamp())
    return next((row.spent for row in found.rows if row.title == budget), None)


def _environment(name: str) -> str:
    """Create another environment; return a token for its pods."""
    usual = USUAL | {"environment": name}
    if not Environment.objects.filter(slug=name).exists():
        edits.create_environment(**usual)
    return create_agent_token(name="pods", expires_at=timezone.now() + timedelta(days=1), **usual)


def _die(*arguments: object, **options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _shift_clock(seconds: float) -> None:
    """This process's wall clock, as Django reads it."""
    real = timezone.now
    timezone.now = lambda: real() + timedelta(seconds=seconds)


def begin() -> dict[str, str]:
    """Fill an empty database with the world; return a token for pods, and a user for the dashboard."""
    fill()
    later = timezone.now() + timedelta(days=1)
    admin = User(username="admin", role="admin")
    password = secrets.token_urlsafe(18)
    admin.set_password(password)
    admin.save()
    return {"token": create_agent_token(name="pods", expires_at=later, **USUAL), "password": password}


def main() -> None:
    say({"again": True} if "again" in sys.argv else begin())
    for line in sys.stdin:
        command = json.loads(line)
        number = command.pop("number")
        try:
            say({"number": number, "answer": do(command)})
        except Exception as error:
            say({"number": number, "error": f"{type(error).__name__}: {error}"})


def say(words: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
