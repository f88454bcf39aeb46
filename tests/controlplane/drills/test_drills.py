"""Drills as admins order them: who takes part, how they end, and what is kept of them."""

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.drills.edits import Chosen, begin_drill, end_drill, under_way
from controlplane.drills.models import Drill
from controlplane.errors import InvalidEdit, NotFound
from controlplane.fleet.models import Server
from fuseboard.contract.words import DrillKind
from tests.controlplane.calling import API, send, token_of
from tests.controlplane.gateway.test_gateway_coordination import answered, gateways  # noqa: F401 - fixtures


@pytest.fixture
def fleet(production):
    """Four servers of two services, one of which has fallen silent."""
    now = timezone.now()
    for name, service, state in (
        ("web-1", "web", "online"),
        ("web-2", "web", "late"),
        ("jobs-1", "jobs", "online"),
        ("jobs-2", "jobs", "offline"),
    ):
        Server.objects.create(
            environment=production,
            name=name,
            boot="b" * 8,
            service=service,
            agent_version="1",
            state=state,
            mode="shared",
            mode_since=now,
            config_status="applied",
            config_source="http",
            started_at=now,
            last_seen_at=now,
            due_at=now,
        )
    return production


def begin(environment, ada, **fields):
    usual = {"kind": "gone", "minutes": 5, "chosen": Chosen(servers=["web-1"]), "reason": "to see it once"}
    return begin_drill(environment=environment, actor=ada, **(usual | fields))


def test_servers_are_chosen_once_by_name_by_service_or_by_percentage(fleet, ada):
    assert begin(fleet, ada).servers == ["web-1"]
    assert begin(fleet, ada, chosen=Chosen(service="jobs")).servers == ["jobs-1"]
    Drill.objects.update(ended_at=timezone.now())
    assert len(begin(fleet, ada, chosen=Chosen(percent=34)).servers) == 2  # of three that report
    assert [drill.chosen for drill in under_way(fleet)] == ["34 % of 3 pods"]


WRONG: tuple[tuple[dict[str, object], str], ...] = (
    ({"minutes": 0}, "minutes"),
    ({"minutes": 61}, "minutes"),
    ({"minutes": True}, "minutes"),
    ({"kind": "odd"}, "kind"),
    ({"reason": "short"}, "reason"),
    ({"chosen": Chosen()}, "servers"),
    ({"chosen": Chosen(servers=["web-1"], percent=10)}, "servers"),
    ({"chosen": Chosen(servers=["jobs-2"])}, "servers"),
    ({"chosen": Chosen(service="nobody")}, "service"),
    ({"chosen": Chosen(percent=101)}, "percent"),
)


def test_what_makes_no_sense_is_refused_by_field_and_begins_nothing(fleet, ada):
    for wrong, field in WRONG:
        with pytest.raises(InvalidEdit) as refused:
            begin(fleet, ada, **wrong)
        assert field in refused.value.errors, wrong
    assert not Drill.objects.exists()


def test_no_pod_takes_part_in_two_drills(fleet, ada):
    begin(fleet, ada)
    with pytest.raises(InvalidEdit, match="in a drill: web-1"):
        begin(fleet, ada, chosen=Chosen(percent=100))


def test_its_beginning_and_its_end_are_audited(fleet, ada):
    drill = begin(fleet, ada)
    ended = end_drill(environment=fleet, drill=drill.pk, reason="seen enough of it", actor=ada)
    assert (ended.ended_by, list(under_way(fleet))) == ("ada", [])
    begun, over = Entry.objects.filter(action__startswith="drill.").order_by("id")
    assert (begun.action, begun.after["servers"], begun.reason) == ("drill.begun", "web-1", "to see it once")
    assert (over.action, over.reason) == ("drill.ended", "seen enough of it")
    with pytest.raises(NotFound):
        end_drill(environment=fleet, drill=drill.pk, reason="seen enough of it", actor=ada)


async def test_it_reaches_its_servers_with_a_beat_and_no_others(gateways, fleet, ada):  # noqa: F811
    gateway = await gateways()
    drill = await sync_to_async(begin)(fleet, ada)
    await gateway.coordination.look()
    answer = (await answered(gateway, "web-1")).drill
    assert (answer.id, answer.kind) == (drill.pk, DrillKind.GONE)
    assert 290_000 < answer.remaining_ms <= 300_000
    assert (await answered(gateway, "web-2")).drill is None
    await sync_to_async(end_drill)(environment=fleet, drill=drill.pk, reason="seen enough of it", actor=ada)
    await gateway.coordination.look()
    assert (await answered(gateway, "web-1")).drill is None


async def test_a_server_in_a_drill_is_stored_and_shown_as_that(gateways, fleet):  # noqa: F811
    from fuseboard.contract.words import Mode

    gateway = await gateways()
    await answered(gateway, "web-9", mode=Mode.DRILL, mode_cause="drill 1: Redis is simulated as unavailable")
    await gateway._flusher.write(with_figures=False)
    row = await Server.objects.aget(name="web-9")
    assert msgspec.convert(row.mode, Mode) is Mode.DRILL


def test_a_program_begins_and_ends_one_if_its_token_is_an_admins(fleet):
    wanted = {"kind": "slow", "minutes": 2, "service": "web", "reason": "to see it once"}
    assert send(token_of("operator"), "POST", f"{API}/drills", wanted).status_code == 403
    admin = token_of("admin")
    begun = send(admin, "POST", f"{API}/drills", wanted)
    assert (begun.status_code, begun.json()["servers"]) == (201, ["web-1", "web-2"])
    path = f"{API}/drills/{begun.json()['id']}/end"
    assert send(admin, "POST", path, {"reason": "seen enough of it"}).json()["ended_by"]
    assert send(admin, "POST", path, {"reason": "seen enough of it"}).status_code == 404
    assert send(admin, "POST", f"{API}/drills", wanted | {"minutes": 61}).status_code == 422
    assert [drill["kind"] for drill in send(token_of("viewer"), "GET", f"{API}/drills").json()] == ["slow"]
