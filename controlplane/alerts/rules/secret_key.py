"""The alert rule about ``FUSEBOARD_SECRET_KEY``: what is stored was encrypted with another key."""

from controlplane.alerts.rules.promql import IN_ENVIRONMENT
from controlplane.alerts.rules.rule import FLEET, Headline, PrometheusQuery, Rule, Subject, Timing
from controlplane.phrases import count
from controlplane.status.status import Status

_TEXT = "What is stored was encrypted with another FUSEBOARD_SECRET_KEY"


def _what_is_lost(status: Status) -> str:
    found = status.facts.watched.unreadable
    parts = []
    if found.receivers:
        parts.append(
            f"{count(found.receivers, 'receiver')} of alerts cannot be read, and no message reaches them."
        )
    if found.people:
        people = "1 person" if found.people == 1 else f"{found.people} people"
        parts.append(f"{people} cannot log in with a password: their second factor cannot be read.")
    return f"{' '.join(parts)} Sessions and refusal tokens of the other key are not accepted either."


SECRET_KEY = Rule[Status](
    key="secret-key",
    describes="stored secrets cannot be decrypted with the secret key",
    severity="critical",
    timing=Timing(level=2, fires_after_s=0, resolves_after_s=10),
    needs="tokens",
    needs_gateway=False,
    scope=FLEET,
    test=lambda status: bool(
        status.facts.watched.unreadable.receivers or status.facts.watched.unreadable.people
    ),
    subject=lambda _: Subject(kind="alerts"),
    text=lambda _: _TEXT,
    detail=_what_is_lost,
    headline=lambda _: Headline("Stored secrets", "", "cannot be decrypted with FUSEBOARD_SECRET_KEY"),
    weight=88,
    prometheus=PrometheusQuery(
        place=440,
        promql="max by (environment) (fuseboard_unreadable_secrets) > 0",
        summary=f"{_TEXT} {IN_ENVIRONMENT}",
    ),
    runbook="secret-key-lost",
)
