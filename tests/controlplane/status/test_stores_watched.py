"""What rules about the stores see: a real Redis that is killed, and limits in a real Postgres."""

from typing import Any

import pytest

from controlplane.alerts.evaluator import evaluate_environment
from controlplane.alerts.models import Alert
from controlplane.embedded.valkey import Valkey
from controlplane.fleet.live import StoreFigures, add_figures
from controlplane.gateway.emergency.probe import RedisProbe
from controlplane.gateway.servers.figures import figures_of
from controlplane.gateway.servers.fleet import Fleet
from controlplane.policies.models import SubjectLimit, TierQuota
from controlplane.status.read_facts import nothing_is_limited
from fuseboard.contract.sync import Counters, StoreCounters
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat


async def test_a_gateway_notices_that_redis_dies_and_returns(valkey: Valkey, settings: Any) -> None:
    settings.REDIS_URL = valkey.url
    fleet = Fleet("production", TurnedClock(), beat_ms=5_000, beats_per_s=2_000)
    probe = RedisProbe({"production": fleet})

    async def seen() -> tuple[int, int]:
        await probe.look()
        store = add_figures([figures_of(fleet)]).store
        return store.primaries, store.primaries_down

    assert await seen() == (1, 0)
    valkey.stop()
    assert await seen() == (1, 1)
    valkey.start()
    assert await seen() == (1, 0)


def test_the_share_of_failed_questions_is_of_all_questions_of_all_pods() -> None:
    clock = TurnedClock()
    fleet = Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)
    for n in range(2):
        for server in ("web-1", "web-2"):
            store = StoreCounters(asked=n * 1_000, timeouts=n * 3, errors=n * 2)
            fleet.absorb(beat(server, counters=Counters(store=store)))
        clock.turn(5.0 * (1 - n))
    fleet.refresh_rates(list(fleet.servers.values()))
    store = add_figures([figures_of(fleet)]).store
    assert (store.asked_per_s, store.failed_share) == (400.0, 0.005)
    # A gateway of the release before does not count questions.
    assert StoreFigures(errors_per_s=3).failed_share == 0.0


@pytest.mark.django_db
def test_nothing_is_limited_when_every_limit_is_a_shadow(production: str) -> None:
    assert not nothing_is_limited(production)
    TierQuota.objects.update(shadow=True)
    limit = SubjectLimit.objects.create(
        environment_id=production, name="logins", limit=5, window_s=60, per=["ip"], shadow=False
    )
    assert not nothing_is_limited(production)
    SubjectLimit.objects.filter(pk=limit.pk).update(shadow=True)
    assert nothing_is_limited(production)
    evaluate_environment(production)
    assert Alert.objects.filter(key="unlimited", level=3, state="firing").count() == 1
    SubjectLimit.objects.all().delete()
    TierQuota.objects.all().delete()
    assert not nothing_is_limited(production), "there is nothing that could limit"
