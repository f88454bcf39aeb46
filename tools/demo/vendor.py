"""An external vendor: an HTTP server whose failures and latency can be set.

``/<dependency>/...`` answers as that dependency; ``GET /control`` returns what it received, and
``PUT /control/<dependency>`` with ``{"failure_percent": 100, "latency_ms": 20}`` sets it. ``/v1/...`` and
``/models`` are language models, see ``tools.demo.model_vendor``.
Run: ``python -m tools.demo.vendor --port N``.
"""

import asyncio
import random
from collections import defaultdict
from typing import Annotated

import msgspec

from tools.demo.asgi import Receive, Scope, Send, answer, read_body
from tools.demo.model_vendor import ModelVendor
from tools.demo.serving import serve


class Behaviour(msgspec.Struct, forbid_unknown_fields=True):
    failure_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    #: The median response time; times vary by 40 percent either way.
    latency_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 12


class Station(msgspec.Struct):
    """One dependency, and the calls it received since the start."""

    behaviour: Behaviour = msgspec.field(default_factory=Behaviour)
    received: int = 0
    failed: int = 0


class Vendor:
    """The ASGI application."""

    def __init__(self) -> None:
        self.stations: defaultdict[str, Station] = defaultdict(Station)
        self.models = ModelVendor()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        first, _, rest = scope["path"].strip("/").partition("/")
        if first in ("v1", "models"):
            await self.models(scope, receive, send)
        elif first != "control":
            await self._serve(self.stations[first], receive, send)
        elif scope["method"] == "PUT" and rest:
            await self._switch(rest, receive, send)
        else:
            await answer(send, 200, msgspec.json.encode(dict(self.stations)))

    async def _serve(self, station: Station, receive: Receive, send: Send) -> None:
        await read_body(receive)
        station.received += 1
        behaviour = station.behaviour
        await asyncio.sleep(behaviour.latency_ms / 1000 * random.uniform(0.6, 1.4))
        if random.random() * 100 < behaviour.failure_percent:
            station.failed += 1
            await answer(send, 503, b'{"error": "The vendor has a bad day."}')
        else:
            await answer(send, 200, b'{"done": true}')

    async def _switch(self, dependency: str, receive: Receive, send: Send) -> None:
        try:
            self.stations[dependency].behaviour = msgspec.json.decode(
                await read_body(receive), type=Behaviour
            )
        except msgspec.DecodeError as error:
            await answer(send, 422, msgspec.json.encode({"error": str(error)}))
            return
        await answer(send, 200, b"{}")


if __name__ == "__main__":
    serve(lambda _: Vendor(), lifespan="off")
