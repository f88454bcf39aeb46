"""Alert rules about tokens and certificates that expire."""

from dataclasses import dataclass
from typing import Any

from controlplane.alerts.rules.promql import IN_ENVIRONMENT
from controlplane.alerts.rules.rule import PrometheusQuery, Rule, Scope, Subject, Timing, days
from controlplane.phrases import count, moment
from controlplane.status.status import Status
from controlplane.status.watched import Expiry

_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Expiring:
    one: Expiry
    #: Negative when it has expired.
    days: float


def _expiring(status: Status, *, certificates: bool) -> list[Expiring]:
    return [
        Expiring(one=one, days=(one.at - status.facts.now) / _DAY_S)
        for one in status.facts.watched.expiring
        if (one.kind == "certificate") == certificates
    ]


_TOKENS = Scope[Expiring](
    each=lambda status: _expiring(status, certificates=False),
    key=lambda expiring: expiring.one.kind.replace(" ", "-").lower(),
    subject=lambda _: Subject(kind="tokens"),
)
_CERTIFICATES = Scope[Expiring](
    each=lambda status: _expiring(status, certificates=True),
    key=lambda _: "",
    subject=lambda _: Subject(kind="servers"),
)


def _when(expiring: Expiring) -> str:
    one = expiring.one
    named = f"{one.kind[:1].upper()}{one.kind[1:]} {one.name}"
    if expiring.days <= 0:
        return f"{named} has expired"
    if expiring.days < 1:
        return f"{named} expires in less than a day"
    return f"{named} expires in {count(int(expiring.days), 'day')}"


EXPIRY_RULES: tuple[Rule[Any], ...] = (
    Rule[Expiring](
        key="certificate",
        describes="the TLS certificate of a web process expires",
        # Days until a token or a certificate expires.
        threshold=days(warning=21.0, critical=5.0),
        value=lambda expiring: expiring.days,
        timing=Timing(level=1, fires_after_s=0, resolves_after_s=10),
        needs="tokens",
        needs_gateway=False,
        scope=_CERTIFICATES,
        text=_when,
        detail=lambda expiring: (
            f"At {moment(expiring.one.at)}. After that, browsers and pods refuse the connection."
        ),
        prometheus=PrometheusQuery(
            place=420,
            promql="min(fuseboard_certificate_expiry_timestamp_seconds) - time() <",
            summary="The certificate of web expires in {{ $value | humanizeDuration }}",
            scale=_DAY_S,
        ),
        runbook="token-or-certificate-expires",
    ),
    Rule[Expiring](
        key="token",
        describes="a token expires",
        # Days until a token or a certificate expires.
        threshold=days(warning=21.0, critical=5.0),
        value=lambda expiring: expiring.days,
        timing=Timing(level=1, fires_after_s=0, resolves_after_s=10),
        needs="tokens",
        needs_gateway=False,
        scope=_TOKENS,
        text=_when,
        detail=lambda expiring: (
            f"At {moment(expiring.one.at)}. After that, what uses it is refused."
            " It is the next one of its kind."
        ),
        prometheus=PrometheusQuery(
            place=430,
            promql="min by (environment, kind) (fuseboard_token_expiry_timestamp_seconds) - time() <",
            summary="An {{ $labels.kind }} token expires in {{ $value | humanizeDuration }} "
            + IN_ENVIRONMENT,
            scale=_DAY_S,
        ),
        runbook="token-or-certificate-expires",
    ),
)
