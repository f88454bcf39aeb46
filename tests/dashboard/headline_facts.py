"""Facts of a fleet of three pods, and the headline of them."""

from dataclasses import replace

from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.fleet.live import FleetFigures
from controlplane.status.facts import BreakerSeen, Dependency, Facts, Server
from dashboard.live.history import History
from dashboard.live.overview import build

NOW = 1_795_144_367.0
MEASURED = FleetFigures(requests_per_s=100.0, gateways=1, live_servers=3)
CLOSED = BreakerSeen(state="closed", generation=3, calls=40, failures=1)
OPEN = BreakerSeen(state="open", generation=4, since=NOW - 20, until=NOW + 40, calls=40, failures=31)


def pod(number, view=CLOSED, **fields):
    usual = {"last_seen": NOW, "revision": 7, "epoch": 1, "breakers": {"payments-api": view}}
    return Server(name=f"web-{number}", **usual | fields)


def fleet(*servers, figures=MEASURED, **fields):
    return Facts(
        now=fields.pop("now", NOW),
        as_of=fields.pop("as_of", NOW),
        epoch=1,
        revision=7,
        servers=servers or (pod(1), pod(2), pod(3)),
        dependencies=(Dependency(name="payments-api"),),
        figures=figures,
        **fields,
    )


def picture(facts):
    return build(facts, History(), FirstSeen())


def headline(facts):
    verdict = picture(facts).verdict
    found = [" ".join(f"{s.subject} {s.join} {s.verb}".split()) for s in verdict.sentences]
    return found or [verdict.calm]


def with_figures(**fields):
    return replace(MEASURED, **fields)


def others(**fields):
    return (pod(1), pod(2), pod(3, **fields))


def lasting(facts, seconds, **then):
    """The picture after the same figures for this long."""
    seen = FirstSeen()
    for moment in range(0, seconds + 1, 10):
        live = build(replace(facts, now=NOW + moment, as_of=NOW + moment, **then), History(), seen)
    return live


def said_by(live):
    return [" ".join(f"{s.subject} {s.join} {s.verb}".split()) for s in live.verdict.sentences]
