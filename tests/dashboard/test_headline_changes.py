"""The headline while something changes, or while an operator wants it: since when, whose, and on purpose."""

from dataclasses import replace

from headline_facts import NOW, OPEN, fleet, headline, lasting, others, picture, pod, said_by, with_figures

from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.fleet.live import TenantFigures
from dashboard.live.history import History
from dashboard.live.overview import build


def test_the_beginning_stays_while_one_condition_stays():
    """It jumped when the oldest condition ended, and when a breaker closed beside refusals."""
    history, seen = History(), FirstSeen()

    def since(second, *servers, **fields):
        now = NOW + second
        facts = fleet(*servers, now=now, as_of=now, figures=with_figures(**fields))
        return build(facts, history, seen).verdict.since

    probing = replace(OPEN, state="half_open", since=NOW + 40)
    assert since(0, *others(state="offline")) == NOW
    assert since(10, pod(1), pod(2, OPEN), pod(3, state="offline")) == NOW - 20
    assert since(40, pod(1), pod(2, OPEN), pod(3)) == NOW - 20, "the silent pod is back"
    assert since(50, pod(1), pod(2, probing), pod(3)) == NOW - 20
    assert since(60, pod(1), pod(2, probing), pod(3), refused_per_s=1.0) == NOW - 20
    assert since(70, refused_per_s=1.0) == NOW - 20, "requests are still refused"
    assert since(80, refused_per_s=1.0) == NOW - 20
    assert since(90) is None
    assert since(100, refused_per_s=1.0) == NOW + 100
    # One greedy tenant all day is no degraded fleet when a breaker opens.
    late = replace(OPEN, since=NOW + 110)
    assert since(110, pod(1), pod(2, late), pod(3), refused_per_s=1.0) == NOW + 110


def test_what_was_wrong_before_a_long_pause_dates_nothing():
    history, seen = History(), FirstSeen()
    build(fleet(*others(view=OPEN)), history, seen)
    later = {"now": NOW + 3_600, "as_of": NOW + 3_600}
    again = fleet(*others(view=replace(OPEN, since=NOW + 3_590)), **later)
    assert build(again, history, seen).verdict.since == NOW + 3_590


SUSPENDED = {
    "requests_per_s": 100.0,
    "refused_per_s": 30.0,
    "refused_by_reason": {"suspended": 30.0},
    "tenants": [TenantFigures("acme", 30.0, 30.0), TenantFigures("globex", 70.0, 0.0)],
}


def test_refusals_of_a_suspended_tenant_are_no_outage():
    """A newcomer suspended a tenant, and the headline said that 30 % of requests are refused."""
    live = picture(fleet(figures=with_figures(**SUSPENDED), suspended=frozenset({"acme"})))
    assert (said_by(live), live.verdict.calm, live.alerts) == ([], "All healthy.", ())
    assert live.verdict.since is None
    assert live.verdict.suspended == "acme is suspended: its 30 requests/s are refused on purpose."
    [tile] = (tile for tile in live.tiles if tile.key == "refused")
    assert (tile.value, tile.over, tile.foot) == ("0", False, "0 % of 100/s, alert above 0.5 %")
    rows = {row.name: (row.suspended, row.hot, row.share) for row in live.tenants}
    assert rows == {"acme": (True, False, 0.0), "globex": (False, False, 0.0)}
    below = picture(fleet(figures=with_figures(**SUSPENDED)))
    assert below.verdict.suspended == "Tenants are suspended: their 30 requests/s are refused on purpose."


def test_the_headline_names_the_tenant_that_most_refusals_are_of():
    """The title was of the whole fleet, and one tenant was over its quota."""
    tenants = [TenantFigures("acme", 30.0, 30.0), TenantFigures("globex", 60.0, 6.0)]
    figures = with_figures(**SUSPENDED | {"refused_per_s": 36.0, "tenants": tenants})
    suspended = frozenset({"acme"})
    assert headline(fleet(figures=figures, suspended=suspended)) == [
        "6 % of requests are refused, most of globex"
    ]
    several = [TenantFigures("globex", 50.0, 3.0), TenantFigures("initech", 50.0, 3.0)]
    both = with_figures(refused_per_s=6.0, tenants=several)
    assert headline(fleet(figures=both)) == ["6 % of requests are refused"]


def test_in_a_drill_the_tiles_agree_with_the_headline():
    """The headline named the drill, and the tile beside it said that 0 of 3 pods decide locally."""

    def tiles(*servers):
        live = picture(fleet(*servers))
        every = {tile.key: tile for tile in (*live.server_tiles, *live.tiles)}
        on_pods = next(tile for tile in live.server_tiles if tile.key == "local")
        return said_by(live), every["local"], on_pods, every["store_errors"]

    said, local, on_pods, _ = tiles(*others(mode="drill"))
    assert said == ["web-3 is in a drill"]
    for tile in (local, on_pods):
        assert (tile.value, tile.foot, tile.over) == ("1", "web-3: in a drill", False), "it is on purpose"
    said, local, _, errors = tiles(*(pod(number, mode="drill") for number in (1, 2, 3)))
    assert said == ["3 pods are in a drill"]
    assert (local.value, local.foot) == ("3", "all of them, in a drill")
    assert (errors.value, errors.foot, errors.over) == ("no data", "every pod is in a drill", False)
    _, local, on_pods, _ = tiles(pod(1), pod(2, mode="local"), pod(3, mode="drill"))
    for tile in (local, on_pods):
        assert (tile.value, tile.foot, tile.over) == ("2", "web-2; 1 in a drill", True)


def test_pods_that_contradict_a_breaker_are_named_after_a_minute():
    """After each change of a breaker, some pods report the state before it for some seconds."""
    divided = fleet(*others(view=OPEN))
    assert said_by(lasting(divided, 50)) == ["payments-api is open"]
    assert said_by(lasting(divided, 60)) == [
        "payments-api is open",
        "2 pods contradict the breaker of payments-api",
    ]
