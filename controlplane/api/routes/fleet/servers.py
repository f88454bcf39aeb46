from dataclasses import asdict

from django.http import HttpRequest
from ninja import Router

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.schemas.configuration_out import Done
from controlplane.api.schemas.edits_in import Environment, PageSize, ReasonIn, Slug
from controlplane.api.schemas.operations_out import EventOut, FleetOut, ServerOut
from controlplane.api.schemas.pod_load_out import pods_out
from controlplane.errors import NotFound
from controlplane.fleet import live
from controlplane.fleet.edits import forget_pod, lift_freeze
from controlplane.fleet.models import Event, Server
from controlplane.policies.document import environment_of
from controlplane.policies.models import Environment as EnvironmentRow
from controlplane.status.read_observing import read_observing
from controlplane.status.server_rows import server_of_row
from controlplane.status.servers import unhealthy_at

router = Router()
fleet = Router()


@router.get("", response=list[ServerOut])
def list_servers(request: HttpRequest, environment: Environment) -> list[Server]:
    """The last heartbeat of each server, whether it is still alive, and how busy it is."""
    row = environment_of(environment)
    return _judged(live.servers(row.slug), row)


@router.get("/{server}", response=ServerOut)
def get_server(request: HttpRequest, environment: Environment, server: Slug) -> Server:
    row = environment_of(environment)
    found = live.server(row.slug, server)
    if found is None:
        raise NotFound("server", server)
    return _judged([found], row)[0]


@router.get("/{server}/events", response=list[EventOut])
def list_events(
    request: HttpRequest, environment: Environment, server: Slug, limit: PageSize = 100
) -> list[Event]:
    """Its events, newest first."""
    rows = Event.objects.filter(environment=environment_of(environment).slug, server=server)
    return list(rows.order_by("-at", "-id")[:limit])


@router.post("/{server}/forget", response=Done, auth=needs("forget_pod"))
def forget(request: HttpRequest, environment: Environment, server: Slug, values: ReasonIn) -> Done:
    """Delete what is known of a server. If it sends another heartbeat, it is listed again."""
    forget_pod(environment=environment, server=server, reason=values.reason, actor=actor_of(request))
    return Done()


@fleet.post("/lift-freeze", response=Done, auth=needs("lift_freeze"))
def lift(request: HttpRequest, environment: Environment, values: ReasonIn) -> Done:
    """Mark silent pods as offline, although many went silent at once. 404 if `frozen` is false."""
    lift_freeze(environment=environment, reason=values.reason, actor=actor_of(request))
    return Done()


@fleet.get("", response=FleetOut)
def get_fleet(request: HttpRequest, environment: Environment) -> FleetOut:
    """Rates and modes of the fleet, pods with the newest revision, and how pods protect themselves."""
    row = environment_of(environment)
    confirmed, servers = live.confirmed(row.slug, row.revision, epoch=row.epoch)
    figures = asdict(live.figures(row.slug))
    figures.pop("live_servers")
    pods = pods_out(
        [server_of_row(server) for server in live.servers(row.slug)],
        read_observing(row.slug, row.protection),
        unhealthy_at(row.alert_rules),
    )
    return FleetOut(revision=row.revision, confirmed=confirmed, servers=servers, pods=pods, **figures)


def _judged(rows: list[Server], environment: EnvironmentRow) -> list[Server]:
    at = unhealthy_at(environment.alert_rules)
    for row in rows:
        row.unhealthy_at = at
    return rows
