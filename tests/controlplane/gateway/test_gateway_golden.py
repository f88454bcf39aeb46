"""The gateway's end of the wire: it reads and writes the contract's golden files."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from controlplane.gateway.answers.configuration import Configuration, Loaded
from fuseboard.contract.policy import TenantRecord, encode_tenant
from fuseboard.contract.sync import decode_request
from tests.contract.examples import HEAD, RESPONSE
from tests.controlplane.gateway.manual_gateway import post, ready_gateway

GOLDEN = Path(__file__).parents[2] / "contract" / "golden"


def golden(name):
    return (GOLDEN / name).read_bytes().rstrip(b"\n")


@pytest.fixture
def configuration():
    held = Configuration("production")
    tenants = {"acme ünd sons": encode_tenant(TenantRecord(tier="enterprise"))}
    held.take(Loaded(head=HEAD, policy=bytes(RESPONSE.policy), tenants=tenants, whole=True))
    return held


@pytest.mark.parametrize("name", ["sync_request.1.json", "sync_request.1.smallest.json"])
async def test_every_golden_heartbeat_is_absorbed(name):
    gateway = ready_gateway()
    answer = await post(gateway, golden(name))
    assert answer.status_code == 200
    (server,) = gateway.fleets["production"].servers.values()
    beat = decode_request(golden(name))
    # What it wanted is in the answer.
    assert replace(server.beat, counters=beat.counters, want=beat.want) == beat
    assert server.track.newest == beat.counters


def test_the_answer_is_the_golden_one_byte_for_byte(configuration):
    beat = decode_request(golden("sync_request.1.json"))
    answer = configuration.answer(beat, server_time_us=1_799_999_999_000_000, next_ms=5_000, live_servers=18)
    assert answer == golden("sync_response.1.json")


def test_the_answer_without_news_is_the_golden_one_byte_for_byte(configuration):
    usual = golden("sync_request.1.smallest.json")[:-1]
    applied = f',"applied":{{"epoch":{HEAD.epoch},"revision":{HEAD.revision},"hash":"{HEAD.hash}"}}}}'
    beat = decode_request(usual + applied.encode())
    answer = configuration.answer(beat, server_time_us=1, next_ms=50, live_servers=1)
    assert answer == golden("sync_response.1.smallest.json")
