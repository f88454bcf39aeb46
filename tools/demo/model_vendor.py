"""The part of the demo's vendor that sells language models, in the formats of OpenAI and of Anthropic.

Answers have a random number of words, at most ``max_tokens``. It keeps a bill for each model, and states in
its headers what is left of the calls per minute. ``GET /models`` answers what each model received and was
charged; ``PUT /models/<model>`` with ``{"status": 503}`` sets how it behaves from its next answer on.
"""

import asyncio
import random
import time
from collections import defaultdict
from typing import Annotated, Any

import msgspec

from tools.demo.asgi import Receive, Scope, Send, answer, read_body
from tools.demo.model_formats import ANSWERS, Answer, Charged, Embeddings, Scenario, input_of

#: Without ``max_tokens`` in the request.
_MOST_WORDS = 400
_WINDOW_S = 60.0

#: The fields of a request that say how long an answer may be.
_MOST = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class ModelBehaviour(msgspec.Struct, forbid_unknown_fields=True):
    """How a model answers."""

    status: Annotated[int, msgspec.Meta(ge=200, le=599)] = 200
    #: The code of the error, in an answer or within a stream.
    code: str = "server_error"
    #: After so many words, a stream ends with an error; ``None`` for never.
    fails_after: int | None = None
    latency_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 20
    #: The pause before each word of a stream.
    word_ms: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    #: Calls that it serves per minute; refilled all the time.
    calls_per_minute: Annotated[int, msgspec.Meta(ge=1)] = 600


class Station(msgspec.Struct):
    """One model: the calls that it received, and the bill, since the start."""

    behaviour: ModelBehaviour = msgspec.field(default_factory=ModelBehaviour)
    received: int = 0
    #: Of these, calls that were refused with 429, and calls with another error.
    limited: int = 0
    failed: int = 0
    #: Calls with an answer, whole or not, and the tokens that they cost.
    calls: int = 0
    fresh: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0
    #: Calls that it would serve now.
    left: float = 600.0
    left_at: float = msgspec.field(default_factory=time.monotonic)

    def behave(self, behaviour: ModelBehaviour) -> None:
        self.refill()
        self.behaviour = behaviour
        self.left = min(self.left, float(behaviour.calls_per_minute))

    def refill(self) -> None:
        now, limit = time.monotonic(), self.behaviour.calls_per_minute
        self.left = min(limit, self.left + (now - self.left_at) * limit / _WINDOW_S)
        self.left_at = now

    def take(self) -> bool:
        """Whether another call is within the limit."""
        self.refill()
        if self.left < 1:
            return False
        self.left -= 1
        return True

    def charge(self, charged: Charged) -> None:
        self.calls += 1
        self.fresh += charged.fresh
        self.cached += charged.cached
        self.written += charged.written
        self.output += charged.output

    def headers(self, path: str) -> dict[str, str]:
        """What is left, as the vendor of this format states it."""
        limit, left = self.behaviour.calls_per_minute, int(self.left)
        full_s = (limit - self.left) * _WINDOW_S / limit
        if path == "/v1/messages":
            prefix, suffix = "anthropic-ratelimit-requests-", ""
            reset = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + full_s))
        else:
            prefix, suffix, reset = "x-ratelimit-", "-requests", f"{full_s:.3f}s"
        stated = {"limit": str(limit), "remaining": str(left), "reset": reset}
        return {f"{prefix}{figure}{suffix}": value for figure, value in stated.items()}


class ModelVendor:
    """An ASGI application, below ``/v1`` and ``/models``."""

    def __init__(self) -> None:
        self.stations: defaultdict[str, Station] = defaultdict(Station)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first, _, rest = scope["path"].strip("/").partition("/")
        if first == "v1":
            await self._serve(scope["path"], receive, send)
        elif scope["method"] == "PUT" and rest:
            await self._switch(rest, receive, send)
        else:
            await answer(send, 200, msgspec.json.encode(dict(self.stations)))

    async def _switch(self, model: str, receive: Receive, send: Send) -> None:
        try:
            behaviour = msgspec.json.decode(await read_body(receive), type=ModelBehaviour)
        except msgspec.DecodeError as error:
            await answer(send, 422, msgspec.json.encode({"error": str(error)}))
            return
        self.stations[model].behave(behaviour)
        await answer(send, 200, b"{}")

    async def _serve(self, path: str, receive: Receive, send: Send) -> None:
        body: dict[str, Any] = msgspec.json.decode(await read_body(receive))
        kind = ANSWERS.get(path)
        if kind is None:
            await answer(send, 404, b'{"error": {"message": "There is no such model."}}')
            return
        station = self.stations[str(body.get("model"))]
        station.received += 1
        behaviour = station.behaviour
        await asyncio.sleep(behaviour.latency_ms / 1000 * random.uniform(0.6, 1.4))
        served = station.take()
        headers = station.headers(path)
        if not served:
            station.limited += 1
            headers["retry-after-ms"] = str(
                int((1 - station.left) * _WINDOW_S * 1000 / behaviour.calls_per_minute) + 1
            )
            await _refuse(send, 429, "rate_limit_exceeded", headers)
        elif behaviour.status >= 300:
            station.failed += 1
            await _refuse(send, behaviour.status, behaviour.code, headers)
        else:
            await self._answer(send, kind, body, station, headers)

    async def _answer(
        self, send: Send, kind: type[Answer], body: dict[str, Any], station: Station, headers: dict[str, str]
    ) -> None:
        most = next((int(body[name]) for name in _MOST if body.get(name)), _MOST_WORDS)
        behaviour, charged = station.behaviour, Charged(body=body, fresh=input_of(body))
        scenario = Scenario(words=random.randint(-(-most // 2), most), after=behaviour.fails_after)
        made = kind(scenario, charged)
        if body.get("stream"):
            await self._stream(send, made, behaviour, headers)
        else:
            charged.output = 0 if kind is Embeddings else scenario.words
            await answer(send, 200, msgspec.json.encode(made.whole()), headers)
        station.charge(charged)

    async def _stream(
        self, send: Send, made: Answer, behaviour: ModelBehaviour, headers: dict[str, str]
    ) -> None:
        """The whole answer is made and charged, whether it is read or not."""
        scenario, charged = made.scenario, made.charged
        charged.output = scenario.words
        start = {"content-type": "text/event-stream; charset=utf-8", **headers}
        raw = [(name.encode(), value.encode()) for name, value in start.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        made.begin()
        for number in range(scenario.words):
            if number == scenario.after:
                charged.output = number
                made.fail(
                    {"message": "The model has a bad day.", "type": behaviour.code, "code": behaviour.code}
                )
                break
            if behaviour.word_ms:
                await _flush(send, made)
                await asyncio.sleep(behaviour.word_ms / 1000)
            made.word()
        else:
            made.end()
        await _flush(send, made)
        await send({"type": "http.response.body", "body": b""})


async def _flush(send: Send, made: Answer) -> None:
    part = "".join(made.events).encode()
    made.events.clear()
    if part:
        await send({"type": "http.response.body", "body": part, "more_body": True})


async def _refuse(send: Send, status: int, code: str, headers: dict[str, str]) -> None:
    error = {"message": "The vendor does not answer this call.", "type": code, "code": code}
    await answer(send, status, msgspec.json.encode({"type": "error", "error": error}), headers)
