"""What would fail later with a worse message."""

from typing import Any

from django.conf import settings
from django.core import checks


@checks.register
def stores_are_configured(**_: Any) -> list[checks.CheckMessage]:
    stores = {
        "DATABASE_URL": settings.DATABASE_URL,
        "FUSEBOARD_REDIS_URL": settings.REDIS_URL,
        "FUSEBOARD_BROKER_URL": settings.BROKER_URL,
    }
    return [
        checks.Error(
            f"{name} is not set.",
            hint="Set it to the server's URL, or run the command through manage.py without any of"
            f" {', '.join(stores)}: embedded servers are then started.",
            id=f"fuseboard.E00{number}",
        )
        for number, (name, url) in enumerate(stores.items(), start=1)
        if not url
    ]


@checks.register(deploy=True)
def limits_and_queue_are_apart(**_: Any) -> list[checks.CheckMessage]:
    if settings.REDIS_URL and settings.REDIS_URL == settings.BROKER_URL:
        return [
            checks.Warning(
                "FUSEBOARD_REDIS_URL and FUSEBOARD_BROKER_URL name the same server.",
                hint="A full queue would hurt every limit: give Celery a server of its own.",
                id="fuseboard.W001",
            )
        ]
    return []


@checks.register(deploy=True)
def nothing_secret_in_the_clear(**_: Any) -> list[checks.CheckMessage]:
    """Only said: whose network it is, is for its owner to know."""
    plain = {
        "FUSEBOARD_REDIS_URL": settings.REDIS_URL.startswith("redis"),
        "FUSEBOARD_BROKER_URL": settings.BROKER_URL.startswith("redis"),
        "DATABASE_URL": "sslmode=verify-full" not in settings.DATABASE_URL,
    }
    urls = {
        "FUSEBOARD_REDIS_URL": settings.REDIS_URL,
        "FUSEBOARD_BROKER_URL": settings.BROKER_URL,
        "DATABASE_URL": settings.DATABASE_URL,
    }
    return [
        checks.Info(
            f"{name} names another machine, and does not ask for TLS.",
            hint="Passwords cross the network: use rediss://, and sslmode=verify-full for Postgres.",
            id="fuseboard.I001",
        )
        for name, url in urls.items()
        if plain[name] and not url.startswith("rediss") and _is_elsewhere(url)
    ]


def _is_elsewhere(url: str) -> bool:
    host = url.partition("://")[2].rpartition("@")[2].partition("/")[0]
    return bool(host) and not host.startswith(("127.", "localhost", "[::1]", "%2F"))


@checks.register(deploy=True)
def operators_give_a_second_factor(**_: Any) -> list[checks.CheckMessage]:
    if settings.MFA_ROLES or settings.OIDC_NAME:
        return []
    return [
        checks.Info(
            "Nobody has to give a second factor.",
            hint="FUSEBOARD_MFA_ROLES=operator,admin asks those for one who can lift a limit.",
            id="fuseboard.I002",
        )
    ]


@checks.register(deploy=True)
def served_where_said(**_: Any) -> list[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    if not settings.ORIGINS:
        found.append(
            checks.Warning(
                "FUSEBOARD_ORIGINS is not set.",
                hint="Pages get no live updates: list the addresses they are served at,"
                " such as https://fuseboard.example.com.",
                id="fuseboard.W002",
            )
        )
    if "*" in settings.ALLOWED_HOSTS:
        found.append(
            checks.Warning(
                "FUSEBOARD_ALLOWED_HOSTS allows every host.",
                hint="List the host names Fuseboard is served at.",
                id="fuseboard.W003",
            )
        )
    return found
