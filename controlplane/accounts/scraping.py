"""Decides who may read ``/metrics``, and of which environments."""

from collections.abc import Iterable
from dataclasses import dataclass
from hmac import compare_digest

from django.conf import settings
from django.db import InterfaceError, OperationalError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from controlplane.accounts.owned_tokens import TokenEnded, TokenUser
from controlplane.accounts.permissions import may
from controlplane.accounts.tokens import user_of
from controlplane.policies.models import Environment
from controlplane.reloading import ReloadedText

#: The body of the answer to a scraper that is refused, with status 401.
REFUSAL = "FUSEBOARD_METRICS_TOKEN, or an API token that may read metrics."

_ACTION = "read_metrics"
_setting = ReloadedText("FUSEBOARD_METRICS_TOKEN")
#: Beginnings of the names of series that describe a process and no environment. A token that may not
#: read every environment gets these, and of all others only those with the label of its environment.
_OF_THE_PROCESS = (
    *("process_", "python_", "fuseboard_postgres_up", "fuseboard_web_", "fuseboard_gateway_"),
    "fuseboard_certificate_expiry_",
)


@dataclass(frozen=True)
class Scraper:
    """A program that may read metrics."""

    #: ``None`` for all of them.
    environments: frozenset[str] | None = None

    def read(self, registry: CollectorRegistry) -> bytes:
        """The series that it may see, in the text format."""
        if self.environments is None:
            return generate_latest(registry)
        return visible_in(registry, self.environments)


def scraper_of(authorization: str) -> Scraper | None:
    """The program that sent this header, or ``None`` if it may not read metrics.

    While Postgres is down, only FUSEBOARD_METRICS_TOKEN is accepted.
    """
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token:
        return None
    expected = _setting.get(settings.METRICS_TOKEN)
    if expected and compare_digest(token.encode(), expected.encode()):
        return Scraper()
    try:
        user = user_of(token)
        return None if user is None else _scraper(user)
    except (OperationalError, InterfaceError, TokenEnded):
        return None


def _scraper(user: TokenUser) -> Scraper | None:
    slugs = Environment.objects.values_list("slug", flat=True)
    allowed = frozenset(slug for slug in slugs if may(user, _ACTION, slug))
    if may(user, _ACTION) and len(allowed) == len(slugs):
        return Scraper()
    return Scraper(allowed) if allowed else None


def visible_in(registry: Collector, environments: frozenset[str]) -> bytes:
    """The series of these environments, and those that describe the process."""
    return generate_latest(_Visible(registry, environments))


class _Visible(Collector):
    def __init__(self, registry: Collector, environments: frozenset[str]) -> None:
        self._registry, self._environments = registry, environments

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            samples = [
                sample
                for sample in metric.samples
                if sample.labels.get("environment") in self._environments
                or ("environment" not in sample.labels and metric.name.startswith(_OF_THE_PROCESS))
            ]
            if samples:
                seen = Metric(metric.name, metric.documentation, metric.type, metric.unit)
                seen.samples = samples
                yield seen
