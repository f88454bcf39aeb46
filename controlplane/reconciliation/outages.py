"""Times in which pods decided locally, from the history of their modes."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from controlplane.fleet.models import Event, EventKind, Server, ServerState
from controlplane.status.outages import ALONE, modes_of

#: Events that are read, and outages that are listed.
_ROWS, _MAX_SHOWN = 20_000, 100
#: Events are kept for the same time.
KEPT = timedelta(days=30)
#: Pods that start are without Redis for a moment, which is no outage.
_SHORTEST = timedelta(seconds=2)
#: Events within this time belong together: pods lose Redis one after the other.
_GAP = timedelta(seconds=60)
#: Pods make these without Redis while they use it, when an answer does not arrive in time.
SINGLE_DECISIONS = (
    "single decisions whose answer from Redis was late or an error: no pod was in fallback for 2 s or longer"
)


@dataclass(frozen=True, kw_only=True)
class Outage:
    begin: datetime
    #: ``None`` while it lasts.
    end: datetime | None
    #: Pods that decided locally at some time of it.
    pods: int

    def until(self, now: datetime) -> datetime:
        return self.end or now

    def overlaps(self, since: datetime, until: datetime) -> bool:
        return self.begin < until and (self.end is None or self.end > since)


def outages(environment: str, now: datetime | None = None) -> list[Outage]:
    """The outages of the last 30 days, newest first. Drills count too: their calls are as real."""
    now = now or timezone.now()
    spans = _spans(environment, now)
    found: list[tuple[datetime, datetime | None, set[str]]] = []
    for begin, end, server in sorted(spans, key=lambda span: span[0]):
        last = found[-1] if found else None
        if last is not None and (last[1] is None or begin <= last[1] + _GAP):
            ends = None if end is None or last[1] is None else max(end, last[1])
            found[-1] = (last[0], ends, last[2] | {server})
        else:
            found.append((begin, end, {server}))
    return [Outage(begin=begin, end=end, pods=len(pods)) for begin, end, pods in reversed(found)][:_MAX_SHOWN]


def _spans(environment: str, now: datetime) -> list[tuple[datetime, datetime | None, str]]:
    """When each pod was without Redis; without an end if it still is."""
    rows = Event.objects.filter(environment=environment, kind=EventKind.MODE, at__gt=now - KEPT)
    newest = list(rows.order_by("-at", "-id").values_list("server", "at", "detail")[:_ROWS])
    lost: dict[str, datetime] = {}
    known: dict[str, int] = defaultdict(int)
    spans: list[tuple[datetime, datetime | None, str]] = []
    for server, at, detail in reversed(newest):
        before, after = modes_of(detail)
        begin = lost.pop(server, None)
        if begin is None and before in ALONE and not known[server]:
            # It was lost before the oldest event that is read.
            begin = newest[-1][1]
        known[server] += 1
        if after in ALONE:
            lost[server] = begin or at
        elif begin is not None and at - begin >= _SHORTEST:
            spans.append((begin, at, server))
    live = Server.objects.filter(environment=environment, name__in=list(lost))
    states = {row.name: row for row in live}
    for server, begin in lost.items():
        row = states.get(server)
        if row is None or row.state not in (ServerState.ONLINE, ServerState.LATE) or row.mode not in ALONE:
            # It ended without Redis: until it was last heard.
            end = row.last_seen_at if row is not None else begin + _SHORTEST
            spans.append((begin, max(begin, end), server))
        elif now - begin >= _SHORTEST:
            spans.append((begin, None, server))
    return spans
