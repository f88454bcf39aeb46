"""What an operator may do to a breaker while Postgres is away: through Redis, told to Postgres later."""

from datetime import timedelta

import redis
from django.http import HttpRequest
from django.utils import timezone

from controlplane.breakers import emergency
from controlplane.policies.errors import InvalidEdit
from dashboard.forms import OverrideForm
from dashboard.reader import actor_of


def act(request: HttpRequest, name: str, form: OverrideForm) -> str:
    """Do what the form asks, and say what was done.

    Raises ``InvalidEdit`` for what must wait: only a hold open protects; a reset takes protection
    away, and needs the name typed; everything else is not urgent.
    """
    data = form.cleaned_data
    try:
        if data["act"] == "forced_open":
            # A longer wish is not refused in an outage: it ends earlier, and says so.
            expires_at = min(data["expires_at"], timezone.now() + emergency.LONGEST - timedelta(seconds=1))
            emergency.hold_open_without_postgres(
                environment="production",
                dependency=name,
                reason=data["reason"],
                expires_at=expires_at,
                actor=actor_of(request),
            )
            return (
                f"{name} is held open until {expires_at:%H:%M:%S} UTC, through Redis alone: "
                "Postgres is away and will be told when it is back. Servers heed it with their next call; "
                "how many have confirmed it is counted again from then on."
            )
        if data["act"] != "reset":
            raise InvalidEdit({"act": ["Postgres is away: until it is back, only Open and Reset work."]})
        if data.get("confirm", "").strip() != name:
            raise InvalidEdit({"confirm": [f"Postgres is away. Type {name} to reset it all the same."]})
        emergency.reset_without_postgres(
            environment="production", dependency=name, reason=data["reason"], actor=actor_of(request)
        )
    except redis.RedisError as error:
        raise InvalidEdit(
            {"act": [f"Neither Postgres nor Redis answers, so nothing was done ({error})."]}
        ) from error
    return f"{name} is reset, through Redis alone: Postgres is away and will be told when it is back."
