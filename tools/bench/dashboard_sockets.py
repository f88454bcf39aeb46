"""1,000 open pages at one web process: whether ticks arrive, memory per socket, CPU per tick.

The web process is started as the product starts it. Browsers are plain sockets of this process, with the
cookie of a viewer, on three pages. Meanwhile pods and figures of dependencies change every second. Run it as
``python tools/bench/dashboard_sockets.py``, or with the number of seconds for which it holds the sockets.
"""

import asyncio
import os
import resource
import statistics
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))

import dashboard_tick as fleet
from control_plane.processes import cpu_s, start
from control_plane.stand import Bars, control_plane, say, within

#: A small fleet, because what a large one costs to draw is measured by ``dashboard_tick.py``.
SOCKETS, PODS, BREAKERS = 1_000, 20, 10
#: Connected at the same time: a browser that waits longer is not refused, only slow.
AT_ONCE = 50
PAGES = ("overview", "breakers", "servers")
HOLD_S = 20.0
#: What the process needed in its first minute, it keeps: growth is measured after it.
SETTLED_S = 60.0
#: As ``dashboard.consumer``: sockets last about 30 minutes.
CONNECT_AGAIN = 4000
#: The growth of a run that counts as a leak, and the noise of a sample.
LEAK_KIB = 4 * 1024
#: Besides the time of holding; an idle machine needs a tenth of it.
MAX_S = 600


class Browser:
    """A page that is open, and what it received."""

    def __init__(self, number):
        self.page = PAGES[number % len(PAGES)]
        self.messages = 0
        self.sizes = []
        self.connected = 0

    async def run(self, port, cookie, gate, connected):
        """Stays on the page: after its time, the web process asks each browser to connect again."""
        while True:
            await self._once(port, cookie, gate, connected)

    async def _once(self, port, cookie, gate, connected):
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            request = (
                f"GET /ws/live?page={self.page} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
                f"Origin: http://127.0.0.1:{port}\r\nCookie: {cookie}\r\nUpgrade: websocket\r\n"
                "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                "Sec-WebSocket-Version: 13\r\n\r\n"
            )
            writer.write(request.encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            if b" 101 " not in answer.partition(b"\r\n")[0]:
                raise SystemExit(answer.decode())
            if not self.connected:
                connected.append(self)
            self.connected += 1
        try:
            while await self._message(reader, writer):
                pass
        finally:
            writer.close()

    async def _message(self, reader, writer):
        """Whether the socket stays open."""
        head = await reader.readexactly(2)
        code, size = head[0] & 15, head[1] & 127
        if size > 125:
            size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
        data = await reader.readexactly(size)
        if code == 8:
            reason = int.from_bytes(data[:2], "big")
            if reason == CONNECT_AGAIN:
                return False
            raise SystemExit(f"the web process closed a socket: {reason}")
        if code == 9:
            # Masked with zeros, which change nothing.
            writer.write(bytes([0x8A, 0x80 | size, 0, 0, 0, 0]) + data)
            return True
        self.messages += 1
        if self.messages > 1:
            self.sizes.append(size)
        return True


def viewer():
    """The cookie of a user who may see the pages."""
    from django.conf import settings
    from django.test import Client

    from controlplane.accounts import claims
    from controlplane.accounts.models import User

    client, user = Client(), User.objects.create_user("vera", role="viewer")
    client.force_login(user)
    session = client.session
    # As the first page does. With them, a busy database ends no socket.
    claims.renew(session, user)
    session.save()
    return f"{settings.SESSION_COOKIE_NAME}={session.session_key}"


def change(stop):
    """Heartbeats of a quarter of the pods, and figures, each second."""
    from django.db import connection

    tick = 0
    while not stop.wait(1.0):
        tick += 1
        first = tick * 5 % PODS
        fleet.write(range(first, first + 5), tick)
        with connection.cursor() as cursor:
            cursor.execute("""SELECT pg_notify('fuseboard_fleet', '{"servers": [], "figures": true}')""")
    connection.close()


async def hold(port, cookie, web, seconds, bars):
    process, gate, connected = psutil.Process(web.pid), asyncio.Semaphore(AT_ONCE), []
    first = Browser(0)
    tasks = [asyncio.create_task(first.run(port, cookie, gate, connected))]
    while first.messages < 3:
        await check(tasks)
    before, browsers = process.memory_info().rss, [Browser(number) for number in range(1, SOCKETS)]
    alone = await cpu_per_tick(web, first, tasks)
    began = time.monotonic()
    tasks += [asyncio.create_task(one.run(port, cookie, gate, connected)) for one in browsers]
    while len(connected) < SOCKETS or not all(one.messages for one in browsers):
        await check(tasks)
    say(f"{SOCKETS} sockets have their page")
    bars.figure("dashboard_sockets_connected_and_drawn", time.monotonic() - began, "s")
    together = await cpu_per_tick(web, first, tasks)
    bars.figure(
        "dashboard_sockets_memory_per_socket", (process.memory_info().rss - before) / SOCKETS / 1024, "KiB"
    )
    bars.figure("dashboard_sockets_cpu_of_a_tick_for_1", alone * 1000, "ms")
    bars.figure(f"dashboard_sockets_cpu_of_a_tick_for_{SOCKETS}", together * 1000, "ms")
    samples, began = [], time.monotonic()
    counted = {id(one): one.messages for one in browsers}
    while (passed := time.monotonic() - began) < seconds:
        await check(tasks)
        samples.append((passed, process.memory_info().rss / 1024))
    silent = sum(one.messages == counted[id(one)] for one in browsers)
    bars.none("dashboard_sockets_without_a_tick", silent, f"of {SOCKETS} sockets in {seconds:.0f} s")
    sizes = [size for one in (first, *browsers) for size in one.sizes]
    bars.figure("dashboard_sockets_bytes_p50", statistics.median(sizes) / 1024, "KiB per message")
    bars.figure("dashboard_sockets_messages", sum(one.messages for one in browsers) / SOCKETS, "per socket")
    again = sum(one.connected - 1 for one in browsers)
    bars.figure("dashboard_sockets_connected_again", again, "times, as the web process asked")
    memory(samples, seconds, bars)
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


async def check(tasks):
    """Wait for a moment; fail with the first socket that failed."""
    done, _ = await asyncio.wait(tasks, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def cpu_per_tick(web, browser, tasks):
    began, messages = cpu_s(web), browser.messages
    while browser.messages < messages + 5:
        await check(tasks)
    return (cpu_s(web) - began) / (browser.messages - messages)


def memory(samples, seconds, bars):
    """How much the process grew in the last half of a run, by the medians of its quarters."""
    if seconds < 2 * SETTLED_S:
        return
    settled = [kib for at, kib in samples if at >= SETTLED_S]
    part = max(1, len(settled) // 4)
    grown = statistics.median(settled[-part:]) - statistics.median(settled[:part])
    bars.figure("dashboard_sockets_memory", statistics.median(settled) / 1024, "MiB")
    bars.figure("dashboard_sockets_memory_grown", grown, f"KiB in {seconds - SETTLED_S:.0f} s")
    bars.none("dashboard_sockets_memory_leaked", int(max(0.0, grown - LEAK_KIB)), f"KiB above {LEAK_KIB}")


def main(seconds=HOLD_S):
    within(int(MAX_S + seconds))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    bars, stop = Bars(), threading.Event()
    fleet.BREAKERS = BREAKERS
    with control_plane(FUSEBOARD_PLAIN_HTTP="1") as folder, ExitStack() as stack:
        fleet.add_dependencies()
        fleet.write(range(PODS), 0)
        cookie = viewer()
        variables = os.environ | {"FUSEBOARD_DATA_DIR": str(folder)}
        web, port = start(stack, ["manage.py", "web", "--port", "0"], variables)
        writer = threading.Thread(target=change, args=[stop], daemon=True)
        writer.start()
        stack.callback(writer.join, 30)
        stack.callback(stop.set)
        say(f"Holding {SOCKETS} sockets for {seconds:.0f} s")
        asyncio.run(hold(port, cookie, web, seconds, bars))
    return bars.status


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
