"""``POST /agent/v1/sync`` as a plain ASGI application.

No Django and no store is in the path of a request: a heartbeat is decoded, checked, and absorbed in
memory, and answered with prepared bytes.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from hmac import compare_digest
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from controlplane.breakers.override_in_gateways import MAX_BODY_BYTES as HOLD_BYTES
from controlplane.breakers.override_in_gateways import PATH
from controlplane.fleet.status_client import MAX_BODY_BYTES as QUESTION_BYTES
from controlplane.fleet.status_client import PATH as FLEET_PATH
from controlplane.fleet.status_client import is_signed_question
from controlplane.gateway.answers.configuration import Configuration
from controlplane.gateway.answers.overrides import read_handed_override
from controlplane.gateway.emergency import turns
from controlplane.gateway.metrics import exporter
from controlplane.gateway.process import Gateway
from controlplane.gateway.servers.fleet import Fleet, FleetFull
from controlplane.gateway.wire import problems
from controlplane.gateway.wire.problems import Problem
from controlplane.gateway.wire.questions import read_question
from controlplane.gateway.wire.texts import cleaned, is_suspect
from controlplane.gateway.wire.tokens import Token
from controlplane.reloading import ReloadedText
from fuseboard.contract.sync import MAX_BODY_BYTES, SYNC_PATH, SyncRequest, decode_request

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]
#: Status, body and headers.
Answer = tuple[int, bytes, Headers]

#: An IPv6 address with a zone is shorter. ``fleet_server.address`` has this length.
LONGEST_ADDRESS = 64

log = structlog.get_logger(__name__)

_JSON = (b"content-type", b"application/json")
_JSON_HEADERS = (_JSON,)
_metrics_token = ReloadedText("FUSEBOARD_METRICS_TOKEN")
_PROBLEM = (b"content-type", b"application/problem+json")
_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class ClientLeft(Exception):
    """The connection ended before the body was complete."""


class GatewayApp:
    """Serves the gateway. Starts it with the server's lifespan, or with the first request."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._metrics = exporter(gateway)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError("the gateway speaks HTTP only")
        self.gateway.start()
        try:
            if scope["path"] == SYNC_PATH:
                await self._sync(scope, receive, send)
            elif scope["path"] == PATH:
                await self._hold(scope, receive, send)
            elif scope["path"] == FLEET_PATH:
                await self._fleet_status(scope, receive, send)
            elif scope["path"] == turns.PATH:
                await self._emergency_turn(scope, receive, send)
            else:
                await self._respond(send, *self._other(scope))
        except Problem as problem:
            await self._respond(send, problem.status, problem.document(), (_PROBLEM, *problem.headers))
        except ClientLeft:
            return

    async def _sync(self, scope: Message, receive: Receive, send: Send) -> None:
        gateway = self.gateway
        self._require_post_when_ready(scope)
        started = gateway.clock.monotonic()
        token = self._admit(dict(scope["headers"]), started)
        body = await _read(receive, most=MAX_BODY_BYTES)
        await self._respond(send, 200, self._answer(token, body, _address(scope)), _JSON_HEADERS)
        gateway.counts.observe(gateway.clock.monotonic() - started)

    def _admit(self, fields: dict[bytes, bytes], now: float) -> Token:
        """The sender's token. Checks the headers only, before any of the body is read."""
        length = fields.get(b"content-length", b"0")
        if len(length) > 9 or int(length) > MAX_BODY_BYTES:
            raise problems.too_large()
        token = self._token(fields.get(b"authorization", b""))
        wait_s = self.gateway.tokens.wait_s(token, now)
        if wait_s:
            raise problems.too_many(wait_s)
        content_type = fields.get(b"content-type", b"")
        plain = content_type == b"application/json" or _is_json(content_type)
        if not plain or fields.get(b"content-encoding", b"identity") not in (b"identity", b""):
            raise problems.wrong_media_type()
        return token

    async def _hold(self, scope: Message, receive: Receive, send: Send) -> None:
        """A web process sends an override that neither store could take."""
        body, authorization = await self._signed(scope, receive, most=HOLD_BYTES)
        self.gateway.hold(read_handed_override(body, authorization))
        await self._respond(send, 200, b'{"held":"in memory"}', _JSON_HEADERS)

    async def _fleet_status(self, scope: Message, receive: Receive, send: Send) -> None:
        """A web process asks for the fleet while Postgres is down."""
        gateway = self.gateway
        body, authorization = await self._signed(scope, receive, most=QUESTION_BYTES)
        environment = read_question(body, gateway.clock, signed=is_signed_question(body, authorization))
        if environment not in gateway.configurations:
            raise problems.not_ready(f"Nothing is published for environment {environment!r} yet.")
        answer = await gateway.status_answers.answer(
            gateway.fleet(environment), gateway.handed_overrides.waiting
        )
        await self._respond(send, 200, answer, _JSON_HEADERS)

    async def _emergency_turn(self, scope: Message, receive: Receive, send: Send) -> None:
        """Another gateway asks whether it must send an alert; also while none has its configuration."""
        gateway = self.gateway
        if scope["method"] != "POST":
            raise problems.wrong_method(b"POST")
        if gateway.emergency is None:
            raise problems.not_found()
        fields = dict(scope["headers"])
        body = await _read(receive, most=QUESTION_BYTES)
        signed = turns.is_signed(body, fields.get(b"authorization", b""))
        answer = gateway.emergency.answer(read_question(body, gateway.clock, signed=signed))
        await self._respond(send, 200, msgspec.json.encode(answer), _JSON_HEADERS)

    async def _signed(self, scope: Message, receive: Receive, *, most: int) -> tuple[bytes, bytes]:
        """The body that a web process sends, and the header that must sign it."""
        self._require_post_when_ready(scope)
        fields = dict(scope["headers"])
        if not _is_json(fields.get(b"content-type", b"")):
            raise problems.wrong_media_type()
        return await _read(receive, most=most), fields.get(b"authorization", b"")

    def _require_post_when_ready(self, scope: Message) -> None:
        if scope["method"] != "POST":
            raise problems.wrong_method(b"POST")
        if not self.gateway.ready:
            raise problems.not_ready("The configuration has not been read yet.")

    def _answer(self, token: Token, body: bytes, address: str) -> bytes:
        gateway = self.gateway
        beat, configuration = self._read_heartbeat(token, body)
        fleet = gateway.fleet(beat.environment)
        now, wall = gateway.clock.monotonic(), gateway.clock.wall()
        wait_s = fleet.wait_s(beat.server, now)
        if wait_s:
            raise problems.too_many(wait_s)
        whole = beat
        if beat.refusals or beat.tally is not None or beat.usage or beat.descriptors is not None:
            # Not kept with the pod: they are for the log, the ledger, and figures of all pods.
            beat = replace(beat, refusals=(), tally=None, usage=(), descriptors=None)
        stale = self._absorb(token, fleet, beat, address, now=now, wall=wall)
        if not stale:
            fleet.sums.tops.sample(gateway.coordination.refusals.record(whole), wall)
        fleet.sums.tenant_hours.record(whole, now, wall, stale=stale)
        fleet.sums.descriptors.record(whole, configuration.descriptor_rules, wall, stale=stale)
        taken = b',"usage_taken":%d' % fleet.sums.usage.record(whole, wall) if whole.usage else b""
        return configuration.answer(
            beat,
            server_time_us=int(wall * 1_000_000),
            next_ms=fleet.size.next_ms,
            live_servers=fleet.divisor_of(beat.server, beat.boot),
            also=taken
            + gateway.coordination.part(beat, now)
            + gateway.coordination.seal_keys.part(beat.environment, token.service)
            + fleet.protection.part(
                beat,
                servers=fleet.servers,
                milli=fleet.sums.totals.milli,
                factors=configuration.load_factors,
                protected=configuration.protected,
                retries_per_s=configuration.retries_per_s,
                unready_percent=configuration.unready_percent,
                now=now,
            ),
        )

    def _read_heartbeat(self, token: Token, body: bytes) -> tuple[SyncRequest, Configuration]:
        """The heartbeat, and the configuration of its environment. Raises ``Problem``."""
        gateway = self.gateway
        beat = problems.decoded(decode_request, body)
        environment = beat.environment
        if environment != token.environment:
            raise problems.wrong_environment(environment)
        configuration = gateway.configurations.get(environment)
        if configuration is None:
            raise problems.not_ready(f"Nothing is published for environment {environment!r} yet.")
        gateway.names.check(beat)
        if is_suspect(body):
            # Ids that the pod asks for stay: they are looked up, and not stored.
            beat = replace(cleaned(beat), want=beat.want)
        token.check_pod(beat.service, beat.server)
        return beat, configuration

    def _absorb(
        self, token: Token, fleet: Fleet, beat: SyncRequest, address: str, *, now: float, wall: float
    ) -> bool:
        """Take the heartbeat into the fleet, if its name may be new. Returns whether it is stale.

        Raises ``Problem``.
        """
        gateway, known, counted = self.gateway, fleet.servers.get(beat.server), True
        if known is None:
            self._admit_name(token, fleet, beat.server, now)
        elif known.adds_a_process(beat, wall=wall):
            # Counted like a new name, but answered: it may be a pod whose name another process took.
            counted = not gateway.tokens.new_name_wait_s(token, now)
        try:
            absorbed = fleet.absorb(
                beat, now=now, wall=wall, token=token.selector, address=address, counted=counted
            )
        except FleetFull:
            raise problems.not_ready("This environment has too many servers.") from None
        if absorbed.urgent:
            gateway.hurry()
        return absorbed.stale

    def _admit_name(self, token: Token, fleet: Fleet, name: str, now: float) -> None:
        """Refuse a pod that is new everywhere, if its token has brought too many. Raises ``Problem``."""
        gateway = self.gateway
        if gateway.known_names.has(fleet.environment, name):
            return
        wait_s = gateway.tokens.new_name_wait_s(token, now)
        if not wait_s:
            return
        per_min = gateway.settings.new_pods_per_min
        if fleet.refused_names.add(now):
            log.warning(
                "gateway.new_pods_refused",
                environment=fleet.environment,
                token=token.selector,
                server=name,
                per_min=per_min,
            )
        raise problems.too_many_new_pods(fleet.refused_names.wait_s(wait_s, now, per_min=per_min), per_min)

    def _other(self, scope: Message) -> Answer:
        path = scope["path"]
        if path not in ("/healthz", "/readyz", "/metrics"):
            raise problems.not_found()
        if scope["method"] not in ("GET", "HEAD"):
            raise problems.wrong_method(b"GET, HEAD")
        if path == "/healthz":
            return 200, b'{"status":"ok"}', (_JSON,)
        if path == "/readyz":
            if not self.gateway.ready:
                raise problems.not_ready("The configuration has not been read yet.")
            return 200, b'{"status":"ok"}', (_JSON,)
        return 200, self._metrics(self._metrics_of(scope["headers"])), (_TEXT,)

    def _metrics_of(self, headers: Headers) -> str | None:
        """The environment that the caller may see; `None` for all."""
        authorization = next((value for name, value in headers if name == b"authorization"), b"")
        configured = _metrics_token.get(self.gateway.settings.metrics_token).encode()
        if configured and compare_digest(authorization, b"Bearer " + configured):
            return None
        # Deprecated, until release 0.3: an agent token has no need for metrics.
        environment = self._token(authorization).environment
        self.gateway.counts.metrics_by_agent_token += 1
        return environment

    def _token(self, authorization: bytes) -> Token:
        token = self.gateway.tokens.check(authorization, self.gateway.clock.wall())
        if token is None:
            raise problems.unauthorized()
        return token

    def count_refusal(self, status: int) -> None:
        """Count a request that was refused before the application got it."""
        self.gateway.counts.answers[status] += 1

    async def _respond(self, send: Send, status: int, body: bytes, headers: Headers) -> None:
        self.gateway.counts.answers[status] += 1
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": status, "headers": (*headers, length)})
        await send({"type": "http.response.body", "body": body})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.gateway.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.gateway.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _address(scope: Message) -> str:
    """Where the connection comes from: the pod, or the last proxy before the gateway. No header counts."""
    client = scope.get("client")
    return str(client[0])[:LONGEST_ADDRESS] if client else ""


async def _read(receive: Receive, *, most: int) -> bytes:
    """A whole body. Raises `Problem` (413), and `ClientLeft` also if `http_limits` gave up on it."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeft
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
        size += len(parts[-1])
        if size > most:
            raise problems.too_large(most)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _is_json(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"application/json"
