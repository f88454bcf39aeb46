"""``DATABASE_URL`` as Django's settings: several hosts, timeouts, and how a cut connection is noticed."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

#: Each session of pages, tasks and gateways has them. Migrations have others.
TIMEOUTS = {
    "statement_timeout": "5s",
    "lock_timeout": "3s",
    "idle_in_transaction_session_timeout": "15s",
}
#: A connection that is cut silently is noticed within about 10 s, idle or not.
_KEEPALIVE = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 5_000,
}


def database_of(url: str, *, name: str, pooled: bool) -> dict[str, Any]:
    """Raises ``ImproperlyConfigured``, which names the variable and never repeats the URL.

    A pooler refuses settings of a session when it opens, so ``pooled`` sessions have those of their role.
    """
    database = _parse(url, name)
    # Each request of an ASGI process has its own thread: a kept connection would never be used again.
    database["CONN_MAX_AGE"] = 0
    # A cursor outside of a transaction belongs to a session.
    database["DISABLE_SERVER_SIDE_CURSORS"] = pooled
    options: dict[str, Any] = {"connect_timeout": 2, "application_name": "fuseboard", **_KEEPALIVE}
    if not pooled:
        options["options"] = as_options(TIMEOUTS)
    database["OPTIONS"] = options | database.get("OPTIONS", {})
    return database


def as_options(settings: Mapping[str, str]) -> str:
    """Settings of a session, as libpq sends them."""
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def _parse(url: str, name: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        user, at, places = parts.netloc.rpartition("@")
        if "," not in places:
            return dict(dj_database_url.parse(url))
        # libpq tries the hosts in turn. The library knows one.
        hosts = [urlsplit(f"//{place}") for place in places.split(",")]
        database = dict(dj_database_url.parse(parts._replace(netloc=f"{user}{at}several").geturl()))
        if not all(host.hostname for host in hosts):
            raise ValueError
        database["HOST"] = ",".join(unquote(host.hostname or "") for host in hosts)
        database["PORT"] = ",".join(str(host.port or 5432) for host in hosts)
    except ValueError:
        raise ImproperlyConfigured(
            f"{name} must be like postgres://user:password@host:5432/name, or with several hosts"
            " host1:5432,host2:5432. Special characters of the password need percent signs."
        ) from None
    return database
