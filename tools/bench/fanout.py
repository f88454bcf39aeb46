"""One picture for 200 browsers: our hub's sockets beside the channel layer's ``group_send``.

Both are channels consumers under uvicorn, each in a separate process, and send the same finished text
several times a second. The figure is the CPU of the serving process per message that a browser
received. The layer is channels' in-memory one, which uses no Redis: a layer over Redis would cost more.
Run it as ``python tools/bench/fanout.py``.
"""

import asyncio
import contextlib
import socket
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.processes import cpu_s, start
from control_plane.stand import PROJECT, Bars, say, within

BROWSERS = 200
PER_S = 5
SECONDS = 3.0
ROUNDS = 3
#: For the whole script; an idle machine needs a quarter of it.
MAX_S = 180
#: Messages per round.
ENOUGH = BROWSERS * PER_S * SECONDS / 2
TEXT = "<div id=x hx-swap-oob=true>" + "picture " * 540 + "</div>"


def serve(way):
    import os

    import uvicorn

    sys.path.insert(0, str(PROJECT))
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    import django

    django.setup()
    from channels.generic.websocket import AsyncWebsocketConsumer
    from channels.layers import InMemoryChannelLayer

    from dashboard.consumer import LiveConsumer
    from dashboard.live.drawing import Drawing

    layer = InMemoryChannelLayer(capacity=1_000)
    sockets = set()

    class Ours(LiveConsumer):
        """The product's consumer without authorization: what it draws comes from here, not from a page."""

        async def connect(self):
            await self.accept()
            self._pending, self._needs_whole, self._latest = None, False, None
            self._news = asyncio.Event()
            self._tasks = [asyncio.create_task(self._write())]
            sockets.add(self)

        async def disconnect(self, code):
            sockets.discard(self)
            for task in self._tasks:
                task.cancel()

    class Layered(AsyncWebsocketConsumer):
        groups = ("everybody",)

        @property
        def channel_layer(self):
            return layer

        @channel_layer.setter
        def channel_layer(self, _):
            """channels sets the configured layer."""

        async def picture(self, event):
            await self.send(text_data=event["text"])

    async def tick():
        while True:
            await asyncio.sleep(1 / PER_S)
            if way == "hub":
                drawing = Drawing(changed=TEXT.encode(), page={})
                for one in list(sockets):
                    one.offer(drawing)
            else:
                await layer.group_send("everybody", {"type": "picture", "text": TEXT})

    consumer = (Ours if way == "hub" else Layered).as_asgi()
    tasks = []

    async def application(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            tasks.append(asyncio.create_task(tick()))
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await consumer(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        say(f"Serving http://127.0.0.1:{listener.getsockname()[1]}/")
        config = uvicorn.Config(application, log_config=None, access_log=False)
        uvicorn.Server(config).run(sockets=[listener])


async def browsers(port, seconds, process):
    """Messages received by all, and CPU seconds of the server meanwhile."""
    handshake = (
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    received, counting, connected = 0, False, 0

    async def one():
        nonlocal received, connected
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(handshake)
        await reader.readuntil(b"\r\n\r\n")
        connected += 1
        frame = len(TEXT) + 4  # longer than 125 bytes, so that its length has two more
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readexactly(frame)
                received += counting
        writer.close()

    tasks = [asyncio.create_task(one()) for _ in range(BROWSERS)]
    loop = asyncio.get_running_loop()
    while connected < BROWSERS:  # noqa: ASYNC110 - a look now and then costs the server nothing
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)
    begun, before, counting = loop.time(), cpu_s(process), True
    # A busy machine sends less often than it should; the cost per message is still valid.
    await asyncio.sleep(seconds)
    while received < ENOUGH and loop.time() - begun < 5 * seconds:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    counting = False
    used = cpu_s(process) - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return received, used


def main():
    import os

    within(MAX_S)
    bars, costs = Bars(), {"hub": [], "group_send": []}
    with ExitStack() as stack:
        variables = os.environ | {
            "FUSEBOARD_SECRET_KEY": "benchmarks-sign-with-this-and-nothing-else-does",
            "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
            "FUSEBOARD_REDIS_URL": "redis://127.0.0.1:1/0",
            "FUSEBOARD_BROKER_URL": "redis://127.0.0.1:1/0",
            "FUSEBOARD_LOG_LEVEL": "WARNING",
        }
        served = {way: start(stack, [__file__, way], variables) for way in costs}
        for _ in range(ROUNDS):
            for way, (process, port) in served.items():
                received, used = asyncio.run(browsers(port, SECONDS, process))
                if received < ENOUGH / 4:
                    raise SystemExit(
                        f"{way}: {received} messages are too few to tell, the machine is too busy"
                    )
                costs[way].append(used / received * 1e6)
    for way, found in costs.items():
        say(f"{way:10} {statistics.median(found):6.0f} us of CPU per message, {BROWSERS} browsers")
    ratios = [theirs / ours for ours, theirs in zip(costs["hub"], costs["group_send"], strict=True)]
    bars.ratio("fanout_vs_group_send", statistics.median(ratios), 5)
    return bars.status


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        sys.exit(main())
