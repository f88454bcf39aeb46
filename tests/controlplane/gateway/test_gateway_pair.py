"""Two gateway processes over one Postgres, and pods that move between them."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import msgspec
import psycopg
import pytest

from controlplane.embedded.postgres import Postgres
from controlplane.fleet.live import add_figures
from fuseboard.contract.load import CallLoad
from fuseboard.contract.sync import SYNC_PATH, Counters, decode_response
from fuseboard.contract.words import Mode
from tests import migrated
from tests.controlplane.gateway.manual_gateway import TOKEN, beat
from tests.controlplane.gateway.test_gateway_process import SEED, manage
from tests.waiting import wait_until

PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    folder = tmp_path_factory.mktemp("postgres")
    migrated.copy_into(folder)
    server = Postgres(folder, durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def variables(postgres, redis_url):
    configured = os.environ | {"DATABASE_URL": postgres.url, "FUSEBOARD_BEAT_MS": "300"}
    manage(configured, "shell", "--verbosity", "0", "-c", SEED)
    return configured


class GatewayProcess:
    def __init__(self, variables):
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "gateway", "--port", "0"],
            cwd=PROJECT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def connect(self):
        self.port = int(re.search(r":(\d+)/", self.process.stdout.readline())[1])
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers)

    def ready(self):
        return self.client.get("/readyz").status_code == 200

    def sync(self, name, requests=0, **fields):
        counted = Counters(requests=requests)
        body = beat(name, up_ms=60_000, counters=counted, **fields)
        answer = self.client.post(SYNC_PATH, content=msgspec.json.encode(body))
        assert answer.status_code == 200, answer.text
        return decode_response(answer.content)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def pair(variables):
    both = [GatewayProcess(variables) for _ in range(2)]
    try:
        for one in both:
            one.connect()
            wait_until(one.ready)
        yield both
    finally:
        for one in both:
            one.kill()
            one.process.stdout.close()
    for one in both:
        one.client.close()


def rows(postgres, query):
    with psycopg.connect(postgres.url) as connection:
        return connection.execute(query).fetchall()


def test_two_gateways_form_one_fleet_and_a_killed_one_loses_nothing(pair, postgres):
    first, second = pair
    place = dict.fromkeys(("pod-1", "pod-2", "pod-3"), first)
    place |= dict.fromkeys(("pod-4", "pod-5", "pod-6"), second)
    begun = time.monotonic()

    def counted():
        """Each pod counts 100 requests per second, however often it reports them."""
        return int((time.monotonic() - begun) * 100)

    def beat_once():
        return {name: where.sync(name, requests=counted()) for name, where in place.items()}

    def everybody_counts(many):
        time.sleep(0.25)
        return {answer.live_servers for answer in beat_once().values()} == {many}

    wait_until(lambda: everybody_counts(6))

    def summed():
        beat_once()
        time.sleep(0.25)
        documents = rows(postgres, "SELECT document FROM fleet_figures WHERE at > now() - interval '3 s'")
        return add_figures([document for (document,) in documents])

    def complete(found):
        """Figures are written once a second: the first may be of a gateway that knew only its own."""
        return found.gateways == 2 and found.requests_per_s > 200 and found.live_servers == 6

    # Six pods: each gateway has half of their 600 requests per second.
    figures = wait_until(lambda: complete(found := summed()) and found)
    assert (figures.live_servers, figures.frozen) == (6, False)

    place["pod-1"].sync("pod-1", requests=counted(), mode=Mode.LOCAL, mode_cause="connection refused")
    wait_until(lambda: rows(postgres, "SELECT 1 FROM fleet_server WHERE name = 'pod-1' AND mode = 'local'"))
    first.kill()
    # Two of its pods come to the other one; the third died at the same moment.
    place.update({"pod-1": second, "pod-2": second})
    del place["pod-3"]
    wait_until(lambda: everybody_counts(6))
    states = dict(rows(postgres, "SELECT name, gateway FROM fleet_server"))
    assert len(states) == 6
    taken_over = f"SELECT 1 FROM fleet_server WHERE name = 'pod-3' AND gateway LIKE '%:{second.port}'"  # noqa: S608

    def noticed():
        beat_once()
        time.sleep(0.25)
        return rows(postgres, f"{taken_over} AND state <> 'online'")

    wait_until(noticed, within_s=40.0)
    happened = rows(postgres, "SELECT server, kind FROM fleet_event ORDER BY id")
    joined = sorted(server for server, kind in happened if kind == "joined")
    # Moving is not joining: every pod has joined once.
    assert joined == [f"pod-{n}" for n in range(1, 7)]
    assert ("pod-1", "mode") in happened
    assert not [pair for pair in happened if pair[1] in ("left", "duplicate")]


def test_two_processes_with_one_name_on_two_gateways_are_reported(pair, postgres):
    first, second = pair

    def told():
        # Apart, as two processes beat, and in no step with the second in which rows are written.
        for gateway, boot in ((first, "boot-aaaa"), (second, "boot-bbbb")):
            gateway.sync("twin", boot=boot)
            time.sleep(0.35)
        return rows(postgres, "SELECT detail FROM fleet_event WHERE server = 'twin' AND kind = 'duplicate'")

    [(detail,)] = wait_until(told)
    assert "two processes" in detail
    wait_until(lambda: first.sync("other").live_servers >= 3)


RETRIED = """
from controlplane.editing import edits
from tests.people import SEED
edits.create_dependency(
    environment="production", dependency="llm", kind="external", reason="for a test", actor=SEED,
    protection={"retry": {"load_factor_percent": 120}},
)
"""


def test_two_gateways_divide_one_cap_of_retries_among_the_pods_of_both(variables, pair, postgres):
    """Four pods call 3 times a second each, four others are idle and hear another gateway.

    Half of the load factor is 1.2 retries per second. A gateway that knew only its own pods would allow 0.3
    to each of the busy ones, and none to the idle ones.
    """
    manage(variables, "shell", "--verbosity", "0", "-c", RETRIED)
    busy, idle = pair
    begun = time.monotonic()

    def caps(**where):
        """The caps that pods get, by the gateway that each group of them asks."""
        found = {}
        for group, gateway in where.items():
            calls = int((time.monotonic() - begun) * 3) if group == "busy" else 0
            load = (CallLoad(dependency="llm", first_calls=calls),)
            answers = [gateway.sync(f"{group}-{number}", protection=load) for number in range(4)]
            found[group] = [answer.retry_caps.get("llm") for answer in answers]
        time.sleep(0.25)
        return found

    def fair(found):
        """All are the same, and their sum is the allowed one. The rates are of some seconds."""
        each = [cap for group in found.values() for cap in group]
        return None not in each and max(each) <= 1.5 * min(each) and 1_000 <= sum(each) <= 1_400

    wait_until(lambda: caps(busy=busy, idle=idle), "caps over both gateways", accept=fair)
    # Its pods come to the other gateway. Nothing is counted twice after its figures have become old.
    idle.kill()
    fresh = "SELECT count(*) FROM fleet_figures WHERE at > now() - interval '10 s'"

    def alone():
        found = caps(busy=busy, idle=busy)
        return found if rows(postgres, fresh) == [(1,)] else {"busy": [None]}

    wait_until(alone, "caps of one gateway", accept=fair, within_s=60.0)
