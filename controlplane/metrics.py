"""Metrics of a web process for Prometheus: its requests, and the state of the system in Postgres.

Needs FUSEBOARD_METRICS_TOKEN, or an API token that may read metrics: it shows the environments of the
token. Labels are routes and fixed words, never user input,
so that the number of series stays small.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from time import perf_counter

from django.db import InterfaceError, OperationalError
from django.db.models import Count
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET
from prometheus_client import REGISTRY
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from controlplane.accounts.models import Login
from controlplane.accounts.scraping import REFUSAL, scraper_of
from controlplane.approvals.models import PENDING, ChangeRequest
from controlplane.breakers.models import Override
from controlplane.fleet.models import Server
from controlplane.metric_catalogue import edits as edit_metrics
from controlplane.metric_catalogue import fleet as fleet_metrics
from controlplane.metric_catalogue import processes as process_metrics
from controlplane.monitoring.stored_figures import stored_figures
from controlplane.policies.models import Environment
from controlplane.publishing.models import OutboxEntry
from controlplane.status.breakers import ENDS_SOON_S

REQUESTS = process_metrics.WEB_REQUESTS.make()
SECONDS = process_metrics.WEB_SECONDS.make()
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class CountRequests:
    """Counts every request under the name of its route."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        began = perf_counter()
        response = self.get_response(request)
        found = request.resolver_match
        route = (found.view_name or "unnamed") if found else "none"
        REQUESTS.labels(route, str(response.status_code)).inc()
        SECONDS.labels(route).observe(perf_counter() - began)
        return response


def count_refusal(status: int) -> None:
    """Count a request that was refused before Django got it, so before it had a route."""
    REQUESTS.labels("none", str(status)).inc()


class FleetCollector(Collector):
    """Reads Postgres at every scrape; while Postgres is down, only reports that."""

    def describe(self) -> Iterable[Metric]:
        """Empty: registration must not read Postgres."""
        return []

    def collect(self) -> Iterable[Metric]:
        up = process_metrics.POSTGRES_UP.family()
        try:
            slugs = Environment.objects.order_by("slug").values_list("slug", flat=True)
            found = [*self._configuration(), *self._fleet(), *stored_figures(slugs)]
        except (OperationalError, InterfaceError):
            found, answers = [], 0
        else:
            answers = 1
        up.add_metric([], answers)
        return [up, *found]

    def _configuration(self) -> Iterable[Metric]:
        revision = edit_metrics.REVISION.family()
        for slug, number in Environment.objects.values_list("slug", "revision"):
            revision.add_metric([slug], number)
        requests = edit_metrics.CHANGE_REQUESTS.family()
        pending = ChangeRequest.objects.filter(state__in=PENDING).values_list("environment", "state")
        for environment, state, count in pending.annotate(Count("pk")).order_by():
            requests.add_metric([environment, state], count)
        waiting = OutboxEntry.objects.filter(published_at__isnull=True).count()
        logins = Login.objects.filter(ended_at__isnull=True, expires_at__gt=Now()).count()
        return [
            revision,
            requests,
            edit_metrics.OUTBOX_WAITING.family(waiting),
            edit_metrics.LOGINS.family(logins),
        ]

    def _fleet(self) -> Iterable[Metric]:
        servers = fleet_metrics.FLEET_SERVERS.family()
        rows = Server.objects.values_list("environment", "state", "mode").annotate(Count("pk")).order_by()
        for environment, state, mode, count in rows:
            servers.add_metric([environment, state, mode], count)
        held = fleet_metrics.BREAKERS_HELD.family()
        in_force = Override.objects.filter(ended_at__isnull=True, expires_at__gt=Now())
        by_mode = in_force.values_list("dependency__environment", "mode").annotate(Count("pk")).order_by()
        for environment, mode, count in by_mode:
            held.add_metric([environment, mode], count)
        soon = fleet_metrics.OVERRIDES_ENDING.family()
        ending = in_force.filter(expires_at__lte=Now() + timedelta(seconds=ENDS_SOON_S))
        by_environment = ending.values_list("dependency__environment").annotate(Count("pk")).order_by()
        for environment, count in by_environment:
            soon.add_metric([environment], count)
        return [servers, held, soon]


REGISTRY.register(FleetCollector())


@require_GET
def metrics(request: HttpRequest) -> HttpResponse:
    scraper = scraper_of(request.headers.get("Authorization", ""))
    if scraper is None:
        refusal = HttpResponse(REFUSAL, status=401)
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal
    return HttpResponse(scraper.read(REGISTRY), content_type=_CONTENT_TYPE)
