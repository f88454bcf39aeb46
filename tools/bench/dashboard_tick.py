"""What one tick of a web process costs at 200 breakers and 1,000 pods: CPU, and bytes per browser.

Between two ticks, 200 pods send a heartbeat, in which the figures of half of their breakers changed. Every
tenth pod has its own opinion about one breaker. Calls and bulkheads of every dependency, and latencies of
pods, change by chance. In the last ticks, half of the pods lose Redis, a tenth of the breakers open, and both
return. No message may exceed the bound. Run it as ``python tools/bench/dashboard_tick.py``.
"""

import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.stand import Bars, control_plane, within

PODS, BREAKERS, HEARTBEATS = 1_000, 200, 200
TICKS, STORMS = 5, 6
#: For the whole script; an idle machine needs a tenth of it.
MAX_S = 600
PAGES = ("overview", "breakers", "servers", "bulkheads")
TIERS = ("critical", "standard", "optional")
chance = random.Random("the figures of a fleet")


def pod_name(pod):
    """As Kubernetes makes it: most of it says nothing, and does not compress."""
    return f"shop-{random.Random(pod).randbytes(5).hex()}-{random.Random(-pod - 1).randbytes(3).hex()}"


def names():
    return [f"dependency-{number:03}" for number in range(BREAKERS)]


def add_dependencies():
    from django.db import connection

    from controlplane.policies.models import Dependency

    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('fuseboard.actor', 'bench', false)")
        Dependency.objects.bulk_create(Dependency(environment_id="production", name=name) for name in names())
        cursor.execute("SELECT set_config('fuseboard.actor', '', false)")


def view(name, number, pod, tick, opened):
    """The breaker as this pod has it: the fleet's, or for every tenth pod once its own."""
    from controlplane.gateway.servers.rows import BreakerRow
    from fuseboard.contract.words import BreakerState

    own = pod % 10 == 0 and number == pod % BREAKERS
    open_ = own or number < opened
    return BreakerRow(
        dependency=name,
        state=BreakerState.OPEN if open_ else BreakerState.CLOSED,
        generation=7 + tick,
        since=1_700_000_000.0 + pod / 1000,
        until=time.time() + 60 if open_ else None,
        override=None,
        local=own,
        window_calls=100 + tick * (number % 2),
        window_failures=tick % 3,
        consecutive_failures=0,
    )


def write_figures():
    """What gateways count: calls of every dependency, and its bulkheads."""
    from datetime import UTC, datetime

    from controlplane.fleet.models import Figures

    def calls():
        rates = {name: chance.random() * 90 for name in ("failures_per_s", "slow_per_s", "refused_per_s")}
        return {"calls_per_s": chance.random() * 900, **rates}

    def slots():
        return {
            "limit": 400,
            "active": chance.randrange(400),
            "queued": chance.randrange(20),
            "entered_per_s": chance.random() * 300,
            "full_per_s": chance.random() * 9,
            "timed_out_per_s": chance.random(),
        }

    document = {
        "requests_per_s": 90_000 + chance.random() * 9_000,
        "refused_per_s": chance.random() * 900,
        "dependencies": {name: calls() for name in names()},
        "protection": {
            name: {"callers": PODS, "tiers": {tier: slots() for tier in TIERS}} for name in names()
        },
        "store": {"p50_us": 300, "p99_us": 700 + chance.random() * 100},
        "live_servers": PODS,
    }
    Figures.objects.update_or_create(
        gateway="bench", environment="production", defaults={"at": datetime.now(UTC), "document": document}
    )


def write(pods, tick, *, opened=3, local=0):
    """Rows as a gateway writes them."""
    write_figures()
    from django.db import connection

    from controlplane.gateway.postgres.upsert import UPSERT, encode_rows
    from controlplane.gateway.servers.rows import Row
    from fuseboard.contract.words import ConfigSource, ConfigStatus, Mode

    now = time.time()
    rows = [
        Row(
            environment="production",
            name=pod_name(pod),
            boot=f"boot-{pod:04}",
            service="shop",
            zone="zone-a",
            agent_version="0.2.0",
            state="online",
            mode=Mode.LOCAL if pod < local else Mode.SHARED,
            mode_since=now - 600,
            mode_cause="",
            epoch=1,
            revision=1,
            config_hash="hash",
            config_status=ConfigStatus.APPLIED,
            config_source=ConfigSource.REDIS,
            config_error="",
            started_at=now - 600,
            last_seen_at=now,
            due_at=now + 6,
            left_at=None,
            calls_per_s=10.0 + chance.random() * 90,
            redis_p99_us=None if pod < local else chance.randrange(300, 2_000),
            gateway="bench",
            rivals=0,
            spending=1,
            breakers=[view(name, number, pod, tick, opened) for number, name in enumerate(names())],
            load={"pressure": 100, "level": "normal", "cause": ""},
            token="selector",
            address=f"10.0.{pod // 256}.{pod % 256}",
            share={},
            alone={},
            primitives=None,
            carries_counts=True,
            uncharged=[],
            seen=[],
        )
        for pod in pods
    ]
    with connection.cursor() as cursor:
        # The product's timeout is for pages; a busy machine takes longer for so many rows.
        cursor.execute("SET statement_timeout = 0")
        for first in range(0, len(rows), 100):
            cursor.execute(UPSERT, [encode_rows(rows[first : first + 100])])


def compare_reading(bars):
    """Reading all pods, beside reading them again after a fifth of them sent a heartbeat."""
    from controlplane.status import read_servers as module

    ratios = []
    for tick in range(TICKS + 1, TICKS + 4):
        module._looks.clear()
        began = time.process_time()
        every = module.read_servers("production")
        whole = time.process_time() - began
        write(range(HEARTBEATS), tick)
        began = time.process_time()
        again = module.read_servers("production")
        ratios.append(whole / (time.process_time() - began))
        if not len(every) == len(again) == PODS:
            raise AssertionError(len(again))
    bars.ratio("dashboard_read_all_vs_changed", statistics.median(ratios), 2)


def ticks(hub, topics):
    """CPU seconds of each tick, and the messages of each page."""
    cpu, sizes = [], {topic.page: [] for topic in topics}
    for tick in range(1, TICKS + 2 * STORMS + 1):
        if tick == TICKS + 1:
            write(range(PODS), tick, opened=BREAKERS // 10, local=PODS // 2)
        elif tick == TICKS + STORMS + 1:
            write(range(PODS), tick)
        elif tick <= TICKS:
            start = tick * HEARTBEATS % PODS
            write(range(start, start + HEARTBEATS), tick)
        else:
            write_figures()
        began = time.process_time()
        drawn = hub._tick(topics)
        cpu.append(time.process_time() - began)
        for topic, drawing in drawn.items():
            sizes[topic.page].append(len(drawing.changed))
    return cpu[:TICKS], sizes


def main():
    within(MAX_S)
    bars = Bars()
    with control_plane():
        from dashboard.hub import Hub
        from dashboard.live.drawing import TICK_BYTES
        from dashboard.live.topics import Topic

        add_dependencies()
        write(range(PODS), 0)
        hub, topics = Hub(), [Topic(page, "admin") for page in PAGES]
        began = time.process_time()
        first = hub._tick(topics)
        bars.figure("dashboard_first_tick_cpu", (time.process_time() - began) * 1000, "ms")
        cpu, sizes = ticks(hub, topics)
        bars.figure("dashboard_tick_cpu", statistics.median(cpu) * 1000, "ms")
        for topic, drawing in first.items():
            found, name = sizes[topic.page], f"dashboard_bytes_{topic.page}"
            bars.figure(f"{name}_whole", len(drawing.whole) / 1024, "KiB")
            bars.figure(f"{name}_tick_p50", statistics.median(found[:TICKS]) / 1024, "KiB")
            bars.figure(f"{name}_tick_worst", max(found) / 1024, "KiB")
            # Calls and bulkheads change in each tick: some of their rows always wait for the next one.
            waiting = len(hub._sent[topic].waiting)
            bars.figure(f"{name}_waiting", waiting, "changes wait after the storm")
        worst = max(map(max, sizes.values()))
        bars.none("dashboard_bytes_above_the_bound", max(0, worst - TICK_BYTES), "bytes")
        compare_reading(bars)
    return bars.status


if __name__ == "__main__":
    sys.exit(main())
