"""A tenant that is erased is also forgotten by gateways, which have its figures of 10 s in memory."""

from typing import Any

import pytest
from asgiref.sync import sync_to_async

from controlplane.erasure import erase
from fuseboard.contract.sync import Counters, RuleCounters, TenantCounters
from tests.controlplane.gateway.manual_gateway import beat
from tests.controlplane.series.test_series_gateway import Setting, setting  # noqa: F401
from tests.controlplane.series.test_tenant_hours import obey

pytestmark = pytest.mark.usefixtures("token", "thread_connections")

_FIGURES = """
    SELECT name, coalesce(sum(v[2 * array_position(ids, id) - 1]), 0)
    FROM series_entity LEFT JOIN series_frame ON series_frame.kind = 4 AND ids @> ARRAY[id]
    WHERE series_entity.kind = 4 GROUP BY name ORDER BY name
"""


async def test_a_tenant_that_asks_again_has_figures_again(setting, database, ada):  # noqa: F811
    """Also one that never stopped: its number is deleted, so it needs a new one."""
    gateway, writer = setting.gateway("g1")

    def ask(number: int) -> None:
        """Each tenant has asked once more in each of the last 10 s."""
        rules = (RuleCounters(rule="requests", asked=number),)
        tenants = tuple(
            TenantCounters(tenant=name, allowed=number, rules=rules) for name in ("acme", "globex")
        )
        counters = Counters(requests=2 * number, tenants=tenants)
        gateway.fleet("production").absorb(beat(sequence=number, up_ms=10_000 * number, counters=counters))

    async def figures() -> dict[str, Any]:
        return dict(await (await database.execute(_FIGURES)).fetchall())

    setting.clock.turn(10)
    for number in (1, 2, 3):
        ask(number)
        setting.clock.turn(10)
        await setting.write(writer)
    before = await figures()
    assert before["acme"] == before["globex"] > 0
    wanted = {"environment": "production", "kind": "tenant", "value": "acme", "actor": ada}
    await sync_to_async(erase)(**wanted, reason="privacy request 12")
    await obey(gateway, database)
    series = gateway.fleet("production").sums.series
    assert not any(thing[1] == "acme" for span in series.spans.values() for thing in span.counted)
    await writer.finish()
    # What was in memory is written without it.
    after = await figures()
    assert "acme" not in after
    assert after["globex"] >= before["globex"]
    for number in (4, 5, 6):
        ask(number)
        setting.clock.turn(10)
        await setting.write(writer)
    assert (await figures())["acme"] > 0
