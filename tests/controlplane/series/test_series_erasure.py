"""A tenant's figures are erased with its name, and those of others stay."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from controlplane.audit.models import Entry
from controlplane.series import sealing
from controlplane.series.erasure import erase_tenant
from controlplane.series.kinds import RULE, TENANT
from controlplane.series.models import Entity
from controlplane.usage.models import Demand, RuleDemand
from controlplane.usage.rollups import erase_tenant as erase_demand
from tests.controlplane.series.series_tables import stored
from tests.controlplane.series.test_series_sealing import FINAL, HOUR, SEALABLE, measure, row, thing, writer


def test_a_tenant_is_erased_from_every_table_and_stays_erased(production: str) -> None:
    g1 = writer()
    acme, rule = thing(TENANT, "acme"), thing(RULE, "acme", sub="requests")
    globex, everyone = thing(TENANT, "globex"), thing(RULE, "", sub="requests")
    measure(g1, 0, TENANT, {acme: row(TENANT, 7), globex: row(TENANT, 3)})
    measure(g1, 0, RULE, {rule: row(RULE, 7), everyone: row(RULE, 10)})
    for name in ("acme", "globex"):
        Demand.objects.create(environment="production", tenant=name, grain_s=60, at=HOUR, asked=7, refused=0)
        RuleDemand.objects.create(
            environment="production", tenant=name, rule="r", grain_s=60, at=HOUR, asked=7, refused=0, shadow=0
        )
    assert sealing.seal(SEALABLE) == 1
    out = StringIO()
    call_command("erase_history", "production", "acme", stdout=out)
    assert out.getvalue().startswith("Erased 0 samples of refusals, 2 series, 2 rows of demand.")
    entry = Entry.objects.get(action="history.erased")
    assert entry.after == {"samples": 0, "series": 2, "demand": 2}
    assert "acme" not in f"{entry.target_name} {entry.reason} {entry.before}"
    assert _left() == {globex, everyone}
    assert set(Entity.objects.values_list("id", flat=True)) == {globex, everyone}
    assert set(Demand.objects.values_list("tenant", flat=True)) == {"globex"}
    assert set(RuleDemand.objects.values_list("tenant", flat=True)) == {"globex"}
    # Frames that are sealed again do not bring it back, nor does a gateway that still knows its number.
    measure(g1, 1, TENANT, {acme: row(TENANT, 1)})
    assert sealing.seal(FINAL + timedelta(minutes=1))
    assert _left() == {globex, everyone}


def _left() -> set[int]:
    return {number for table in ("series_10s", "series_1m", "series_1h") for number, _ in stored(table)}


def test_no_name_erases_nothing(production: str) -> None:
    """An empty name stands for all tenants together."""
    everyone = thing(RULE, "", sub="requests")
    with pytest.raises(ValueError, match="Name the tenant"):
        erase_tenant("production", "")
    with pytest.raises(ValueError, match="Name the tenant"):
        erase_demand("production", "")
    with pytest.raises(CommandError, match="Use 1 to 200 characters"):
        call_command("erase_history", "production", " ")
    assert Entity.objects.filter(id=everyone).exists()
