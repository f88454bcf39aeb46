"""Overrides and resets while Postgres is unavailable: through Redis, and recorded later.

Without Redis as well, an override to open goes to the gateways, which keep it in memory. In either
case, the gateways count how many pods apply it.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from django.http import HttpRequest
from django.utils import timezone

from controlplane.accounts.permissions import environment_in
from controlplane.breakers import override_in_gateways, override_in_redis
from controlplane.errors import InvalidEdit
from controlplane.status.without_postgres import confirming
from controlplane.validation import LONGEST_REASON
from dashboard.hub import hub
from dashboard.reader import actor_of
from dashboard.views.breakers.override_form import OverrideForm

#: Pods report a breaker that changed within 100 ms of their next call to it. The form waits this long for
#: most of them to report; the page goes on counting.
CONFIRM_S = 1.5
_LOOK_S = 0.15


def act(request: HttpRequest, name: str, form: OverrideForm) -> str:
    """Apply the form, and return what was done.

    Raises ``InvalidEdit`` for what must wait. Only an override to open protects. A reset removes
    protection, and needs the name typed. Everything else is not urgent.
    """
    data = form.cleaned_data
    try:
        if data["act"] == "forced_open":
            expires_at = _earlier(data["expires_at"], override_in_redis.LONGEST)
            try:
                override_in_redis.force_open_without_postgres(
                    environment=environment_in(request),
                    dependency=name,
                    reason=data["reason"],
                    expires_at=expires_at,
                    actor=actor_of(request),
                    ticket=data["ticket"],
                )
            except redis.RedisError as error:
                return _hand_over(request, name, data, error)
            return (
                f"{name} is forced open until {expires_at:%H:%M:%S} UTC, through Redis only. Postgres is "
                "unavailable; the override is recorded when it is back. Pods apply it with their next call. "
                f"{_confirmed(environment_in(request), name, wait_s=CONFIRM_S)}"
            )
        if data["act"] != "reset":
            raise _refusal("Postgres is unavailable: until it is back, only Force open and Reset work.")
        if data.get("confirm", "").strip() != name:
            problem = f"Postgres is unavailable. Type {name} to reset the breaker anyway."
            raise InvalidEdit({"confirm": [problem]})
        _refuse_what_gateways_hold(environment_in(request), name)
        override_in_redis.reset_without_postgres(
            environment=environment_in(request),
            dependency=name,
            reason=data["reason"],
            actor=actor_of(request),
        )
    except redis.RedisError as error:
        raise _refusal(
            f"Postgres and Redis are unavailable, so it is not known whether {name} was reset ({error}). Look"
            " at its state. Force open still works."
        ) from error
    return f"{name} was reset through Redis only. Postgres is unavailable; it records the reset later."


def _refuse_what_gateways_hold(environment: str, name: str) -> None:
    """Refuse while gateways force it open: they do so until its time, whatever Redis says now."""
    override = hub.without_postgres.gateways.ask(environment, fresh=True).overrides.get(name)
    if override is not None:
        until = datetime.fromtimestamp(override["expires_at_us"] / 1_000_000, UTC)
        raise _refusal(f"Gateways force it open until {until:%H:%M:%S} UTC, or until Postgres is back.")


def _refusal(text: str) -> InvalidEdit:
    return InvalidEdit({"act": [text]})


def _hand_over(request: HttpRequest, name: str, data: dict[str, Any], error: redis.RedisError) -> str:
    """Force it open through the gateways alone."""
    expires_at = _earlier(data["expires_at"], override_in_gateways.LONGEST)
    # A gateway of an older version accepts no other field, so that the ticket becomes a part of the reason.
    ticket = f" ({data['ticket']})" if data["ticket"] else ""
    reason = data["reason"] + ticket if len(data["reason"] + ticket) <= LONGEST_REASON else data["reason"]
    try:
        took, there = override_in_gateways.hand_over(
            environment=environment_in(request),
            dependency=name,
            reason=reason,
            expires_at=expires_at,
            actor=actor_of(request),
        )
    except override_in_gateways.NotHanded as refusal:
        raise _refusal(
            f"Postgres and Redis are unavailable, so it is not known whether {name} is forced open ({error};"
            f" {refusal}). Look at its state before you try again."
        ) from refusal
    return (
        f"{name} is forced open until {expires_at:%H:%M:%S} UTC, in memory only: Postgres and Redis are "
        f"unavailable. {took} of {there} gateways have the override; a gateway loses it when it restarts. "
        "Pods receive it with their next heartbeat and apply it until it expires. A gateway that still has "
        f"it records it when Postgres is back. {_confirmed(environment_in(request), name, wait_s=0.0)}"
    )


def _confirmed(environment: str, name: str, *, wait_s: float) -> str:
    """How many pods refuse calls to it by now, as the gateways know."""
    known = hub.of(environment).facts
    if known is None:
        return "The number of pods that have confirmed it is not known here."
    until = time.monotonic() + wait_s
    while True:
        facts = hub.without_postgres.facts(known, fresh=True)
        if not facts.gateways_reporting:
            return (
                "No gateway reports how many pods have confirmed it; the count returns when Postgres is back."
            )
        done, live = confirming(facts, name)
        if done == live or time.monotonic() > until:
            said = f"{done} of {live} pods ha{'s' if live == 1 else 've'} confirmed it"
            return f"{said}." if done == live else f"{said} so far; this page keeps counting."
        time.sleep(_LOOK_S)


def _earlier(wished: datetime, longest: timedelta) -> datetime:
    """A longer time is not refused in an outage: the override ends earlier, and the answer says so."""
    return min(wished, timezone.now() + longest - timedelta(seconds=1))
