"""What one tick of a web process costs at 200 breakers and 1,000 pods: CPU, and bytes per browser.

Between two ticks, 200 pods send a heartbeat, in which the figures of half of their breakers changed. Every
tenth pod has an opinion of its own about one breaker. Run it as ``python tests/bench/dashboard_tick.py``.
"""

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.stand import Bars, control_plane, within

PODS, BREAKERS, HEARTBEATS = 1_000, 200, 200
TICKS = 5
#: For the whole script; an idle machine needs a tenth of it.
MOST_S = 600
PAGES = ("overview", "breakers", "servers")


def names():
    return [f"dependency-{number:03}" for number in range(BREAKERS)]


def add_dependencies():
    from django.db import connection

    from controlplane.policies.models import Dependency

    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('fuseboard.actor', 'bench', false)")
        Dependency.objects.bulk_create(Dependency(environment_id="production", name=name) for name in names())
        cursor.execute("SELECT set_config('fuseboard.actor', '', false)")


def view(name, number, pod, tick):
    """The breaker as this pod has it: the fleet's, or for every tenth pod once its own."""
    from controlplane.gateway.servers.rows import BreakerRow
    from fuseboard.contract.words import BreakerState

    own = pod % 10 == 0 and number == pod % BREAKERS
    open_ = own or number < 3
    return BreakerRow(
        dependency=name,
        state=BreakerState.OPEN if open_ else BreakerState.CLOSED,
        generation=7,
        since=1_700_000_000.0 + pod / 1000,
        until=time.time() + 60 if open_ else None,
        override=None,
        local=own,
        window_calls=100 + tick * (number % 2),
        window_failures=tick % 3,
        consecutive_failures=0,
    )


def write(pods, tick):
    """Rows as a gateway writes them."""
    from django.db import connection

    from controlplane.gateway.postgres.upsert import UPSERT, encode_rows
    from controlplane.gateway.servers.rows import Row
    from fuseboard.contract.words import ConfigSource, ConfigStatus, Mode

    now = time.time()
    rows = [
        Row(
            "production",
            f"pod-{pod:04}",
            f"boot-{pod:04}",
            "shop",
            "zone-a",
            "0.2.0",
            "online",
            Mode.SHARED,
            now - 600,
            "",
            1,
            1,
            "hash",
            ConfigStatus.APPLIED,
            ConfigSource.REDIS,
            "",
            now - 600,
            now,
            now + 6,
            None,
            10.0 + tick % 7,
            900,
            "bench",
            0,
            1,
            [view(name, number, pod, tick) for number, name in enumerate(names())],
            {"pressure": 100, "level": "normal", "cause": ""},
            "selector",
            f"10.0.{pod // 256}.{pod % 256}",
            {},
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


def main():
    within(MOST_S)
    bars = Bars()
    with control_plane():
        from dashboard.hub import Hub
        from dashboard.live.topics import Topic

        add_dependencies()
        write(range(PODS), 0)
        hub, topics = Hub(), [Topic(page, "admin") for page in PAGES]
        began = time.process_time()
        first = hub._tick(topics)
        bars.figure("dashboard_first_tick_cpu", (time.process_time() - began) * 1000, "ms")
        cpu, size = [], {page: [] for page in PAGES}
        for tick in range(1, TICKS + 1):
            start = tick * HEARTBEATS % PODS
            write(range(start, start + HEARTBEATS), tick)
            began = time.process_time()
            drawn = hub._tick(topics)
            cpu.append(time.process_time() - began)
            for topic, drawing in drawn.items():
                size[topic.page].append(len(drawing.changed))
        bars.figure("dashboard_tick_cpu", statistics.median(cpu) * 1000, "ms")
        for topic, drawing in first.items():
            name = f"dashboard_bytes_{topic.page}"
            bars.figure(f"{name}_whole", len(drawing.whole) / 1024, "KiB")
            bars.figure(f"{name}_tick", statistics.median(size[topic.page]) / 1024, "KiB")
        compare_reading(bars)
    return bars.status


if __name__ == "__main__":
    sys.exit(main())
