"""System checks: report at start what would fail later with a worse message."""

import os
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.core import checks

from controlplane.installation import COMMAND

#: Checks of what the environment configures.
CONFIGURATION = "configuration"

#: Every variable that any part of Fuseboard reads, without its prefix; docs/settings.md describes them.
VARIABLES = frozenset(
    """
    ACL_AGENT_PASSWORD ACL_AGENT_PASSWORDS ACL_CONTROL_PASSWORD ACL_PROFILE ALLOWED_HOSTS ANNOUNCE_S
    API_BURST API_RATE_PER_S API_TOKEN API_URL AUDIT_EXPORT_FILE AUDIT_EXPORT_SECRET AUDIT_EXPORT_URL
    BEATS_PER_S BEAT_FILE BEAT_MS BEHIND_PROXY BOOTSTRAP_FILE BROKER_URL CA_FILE DATABASE_POOLED DATA_DIR
    DEBUG DEMO DIRECT_DATABASE_URL DOCUMENTATION_URL ENVIRONMENT EXPLAIN_URL GATEWAY_URL LEDGER_DAYS_D
    LEDGER_HOURS_D LOG_LEVEL METRICS_TOKEN MFA_ROLES MOST_SUBJECTS
    NEW_PODS_PER_MIN OIDC_CLIENT_ID OIDC_CLIENT_SECRET OIDC_NAME OIDC_ROLES
    OIDC_URL ONCALL_AFTER_S ONCALL_DIR ORIGINS OTEL PLAIN_HTTP PROXIES REDIS_CAPACITY_OPS REDIS_URL
    REFUSAL_LOG_H REFUSAL_TOKEN_DAYS SECRET_KEY SECRET_KEY_FALLBACKS SERIES_10S_H SERIES_HOURS_D
    SERIES_MINUTES_D SERIES_TENANTS_D SERVER SERVICE SIDECAR_TOKEN STATE_DIR TICKET_URL TLS_CERT_FILE
    TLS_KEY_FILE TOKEN TOKEN_BURST TOKEN_RATE_PER_S URL USAGE_10S_H USAGE_HOURS_D USAGE_MINUTES_D WATCHDOG_URL
    WEBHOOK_NETWORKS WEEKLY_AT WORKER_METRICS_PORT ZONE
    """.split()  # noqa: SIM905 - read as a text, not as many strings
)

_STORES = ("DATABASE_URL", "FUSEBOARD_REDIS_URL", "FUSEBOARD_BROKER_URL")


@checks.register(CONFIGURATION)
def variables_are_spelled_as_they_are_read(**_: Any) -> list[checks.CheckMessage]:
    """Report unknown variables: a misspelled one would silently leave its default."""
    found: list[checks.CheckMessage] = []
    for variable in os.environ:
        name = variable.removeprefix("FUSEBOARD_").removesuffix("_FILE")
        known = name in VARIABLES or f"{name}_FILE" in VARIABLES
        if not variable.startswith("FUSEBOARD_") or known:
            continue
        if close := get_close_matches(name, VARIABLES, n=1, cutoff=0.85):
            found.append(
                checks.Error(
                    f"{variable} is unknown.",
                    hint=f"Did you mean FUSEBOARD_{close[0]}?",
                    id="fuseboard.E004",
                )
            )
    return found


@checks.register(CONFIGURATION)
def stores_are_configured(**_: Any) -> list[checks.CheckMessage]:
    stores = {"DATABASE_URL": settings.DATABASE_URL, "FUSEBOARD_REDIS_URL": settings.REDIS_URL}
    return [
        _not_set(name, f"fuseboard.E00{number}")
        for number, (name, url) in enumerate(stores.items(), start=1)
        if not url
    ]


@checks.register(deploy=True)
def queue_is_configured(**_: Any) -> list[checks.CheckMessage]:
    """Only workers and beat use the queue, so other processes may run without it."""
    return [] if settings.BROKER_URL else [_not_set("FUSEBOARD_BROKER_URL", "fuseboard.E003")]


def _not_set(name: str, number: str) -> checks.Error:
    hint = (
        f"Set it to the server's URL, or run the command with `{COMMAND}` without any of"
        f" {', '.join(_STORES)}: embedded servers are then started."
    )
    return checks.Error(f"{name} is not set.", hint=hint, id=number)


@checks.register(deploy=True)
def limits_and_queue_are_apart(**_: Any) -> list[checks.CheckMessage]:
    if settings.REDIS_URL and settings.REDIS_URL == settings.BROKER_URL:
        return [
            checks.Warning(
                "FUSEBOARD_REDIS_URL and FUSEBOARD_BROKER_URL name the same server.",
                hint="A full queue would affect every limit: give Celery its own server.",
                id="fuseboard.W001",
            )
        ]
    return []


@checks.register(deploy=True)
def nothing_secret_in_the_clear(**_: Any) -> list[checks.CheckMessage]:
    """A notice only: the owner of the network knows whether it is safe."""
    plain = {
        "FUSEBOARD_REDIS_URL": settings.REDIS_URL.startswith("redis"),
        "FUSEBOARD_BROKER_URL": settings.BROKER_URL.startswith("redis"),
        "DATABASE_URL": "sslmode=verify-full" not in settings.DATABASE_URL,
        "FUSEBOARD_DIRECT_DATABASE_URL": "sslmode=verify-full" not in settings.DIRECT_DATABASE_URL,
    }
    urls = {
        "FUSEBOARD_REDIS_URL": settings.REDIS_URL,
        "FUSEBOARD_BROKER_URL": settings.BROKER_URL,
        "DATABASE_URL": settings.DATABASE_URL,
        "FUSEBOARD_DIRECT_DATABASE_URL": settings.DIRECT_DATABASE_URL,
    }
    return [
        checks.Info(
            f"{name} names another machine and does not use TLS.",
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
            "No role requires a second factor.",
            hint="FUSEBOARD_MFA_ROLES=operator,admin requires one for roles that can change limits.",
            id="fuseboard.I002",
        )
    ]


@checks.register(deploy=True)
def served_addresses(**_: Any) -> list[checks.CheckMessage]:
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
