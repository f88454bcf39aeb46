"""The outcomes of calls that Envoy made, from its access log.

A plain function over the bytes of an export. It belongs to the loop of the agent.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from time import monotonic

from google.protobuf.message import DecodeError
from msgspec import Struct
from msgspec.json import Decoder

from fuseboard.agent import Agent
from fuseboard.agent_api.asks import MAX_ASKS
from fuseboard.calling.failures import note_failure
from fuseboard.calling.grpc_status import PUSHBACK, RpcStatus, name_of
from fuseboard.contract.words import Outcome
from fuseboard.decision import Permit
from fuseboard.envoy import otlp_pb2 as pb
from fuseboard.envoy.asks import InvalidMessage
from fuseboard.envoy.service import Answered
from fuseboard.integrations.guarded_request import report_answer, report_rpc

logger = logging.getLogger("fuseboard.envoy")

#: The method of gRPC, and the path of an export over HTTP.
EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
EXPORT_OVER_HTTP = "/v1/logs"

#: The bytes of an export, its messages, and the attributes of one. Envoy sends 16 KiB at once.
MAX_EXPORT, MAX_MESSAGES, MAX_ATTRIBUTES = 64 * 1024, 2_000, 32
#: An attempt is charged for each repetition, but for no more than these.
MAX_ATTEMPTS = 100
#: Envoys that count as witnesses of their own, and the time after which another may take the place of one.
MAX_NODES, QUIET_S = 64, 600.0
#: The longest time of a call, in milliseconds: a day.
_MAX_MS = 86_400_000
#: Greater than all numbers of statuses of gRPC.
_MAX_RPC = 999
#: The longest ``Retry-After``, in characters.
_MAX_TEXT = 64
#: The permits of one request. Two filters ask, each for at most ``MAX_ASKS``.
_MAX_PERMITS = 2 * MAX_ASKS

#: The flags of Envoy for a failure of the upstream, and the kind of failure that pages show.
FAILURES = {
    b"UH": "no_healthy_upstream",
    b"UT": "timeout",
    b"LR": "local_reset",
    b"UR": "upstream_reset",
    b"UF": "connection_failed",
    b"UC": "connection_lost",
    b"UPE": "protocol_error",
    b"DF": "dns_failure",
}
#: The flags of requests that Envoy or the client ended. They say nothing of the upstream.
NEUTRAL = frozenset({b"UO", b"DC", b"DI", b"FI", b"RL", b"RLSE", b"UAEX"})
#: With this flag, the last attempt was counted but not sent: a circuit breaker of Envoy was full.
_OVERFLOW = b"UO"
#: Envoy makes no further attempt. The status says how the last one failed, if an upstream answered it.
_NO_MORE, _NO_MORE_KIND = b"URX", "retries_exhausted"


class Record(Struct, frozen=True):
    """How one request of Envoy ended."""

    #: One for each dependency that the request asked.
    permits: tuple[str, ...]
    #: The status of the answer; 0 if the client left before one.
    code: int
    flags: tuple[bytes, ...]
    #: How long the upstream took, in seconds; ``None`` if it is not known.
    elapsed_s: float | None
    #: How often Envoy sent the request; ``None`` if the log does not say it.
    attempts: int | None
    retry_after: str
    #: The name of the status of a gRPC call; empty for other requests.
    rpc: str
    #: The milliseconds that the server of a gRPC call asks for; empty if it asks for none.
    pushback: str
    #: The message of the status of a gRPC call, of headers and trailers, each cut.
    details: str = ""


class Ended(Struct, frozen=True):
    """The end of one request for the worker that gave its permit."""

    permit: str
    witness: str
    record: Record


#: The word of Envoy for what it does not know, and of what is not there.
_UNKNOWN = ("-", "")

_decode_ended = Decoder(tuple[Ended, ...]).decode


class Nodes:
    """The Envoys of which exports came lately: the breaker counts which of them saw failures.

    A name is a digest, because a node chooses its own. Beyond the bound, and without a name, outcomes belong
    to this process.
    """

    def __init__(self) -> None:
        #: Witness -> when its last export came, the oldest first; monotonic seconds.
        self._known: dict[str, float] = {}
        #: Exports of Envoys beyond the bound.
        self.beyond = 0

    def __len__(self) -> int:
        return len(self._known)

    def witness(self, node: bytes) -> str:
        """The name of an Envoy in the evidence of a breaker; empty for this process."""
        if not node:
            return ""
        name, now = f"envoy-{sha256(node).hexdigest()[:12]}", monotonic()
        if self._known.pop(name, None) is None and len(self._known) >= MAX_NODES:
            oldest, heard = next(iter(self._known.items()))
            if now - heard < QUIET_S:
                self.beyond += 1
                return ""
            del self._known[oldest]
        self._known[name] = now
        return name


class AccessLog:
    """``take`` finds the permit with an id, once: the rate limit service gave it to Envoy.

    ``hand_on`` sends what ended to the worker that has the permit. False if that is no other one.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        take: Callable[[str], Permit | None],
        hand_on: Callable[[str, Ended], bool] | None = None,
    ) -> None:
        self._agent, self._take, self._hand_on = agent, take, hand_on
        self.nodes = Nodes()
        #: Outcomes that counted, and permits that had ended or never were.
        self.outcomes = self.unknown = 0
        #: Exports that could not be read, and those that were read in part because they are too long.
        self.invalid = self.cut = 0
        #: Calls that Envoy repeated.
        self.repeated = 0

    async def answer(self, body: bytes) -> Answered:
        """``export`` for a server."""
        return Answered(self.export(body))

    def export(self, body: bytes) -> bytes:
        """Answer the bytes of an ``ExportLogsServiceRequest`` with those of its response.

        Raises ``InvalidMessage``, and nothing else.
        """
        if len(body) > MAX_EXPORT:
            self.invalid += 1
            raise InvalidMessage(f"an export has at most {MAX_EXPORT} bytes")
        try:
            request = pb.ExportLogsServiceRequest.FromString(body)
        except DecodeError:
            self.invalid += 1
            raise InvalidMessage("the body is no ExportLogsServiceRequest") from None
        for number, one in enumerate(self._messages(request)):
            if number >= MAX_MESSAGES:
                self.cut += 1
                break
            if one is not None and (record := _read(_texts(one[1].attributes))) is not None:
                for name in record.permits:
                    self._note(name, one[0], record)
        return b""

    def take_ended(self, body: bytes) -> None:
        """Take what another worker hands on."""
        for ended in _decode_ended(body):
            self._note(ended.permit, ended.witness, ended.record)

    def _messages(self, request: pb.ExportLogsServiceRequest) -> Iterator[tuple[str, pb.LogRecord] | None]:
        """The records of an export, each with its witness; ``None`` for every other message."""
        for resource in request.resource_logs:
            witness = self.nodes.witness(_texts(resource.resource.attributes).get(b"node_name", b""))
            yield None
            for scope in resource.scope_logs:
                yield None
                for logged in scope.log_records:
                    yield witness, logged

    def _note(self, name: str, witness: str, record: Record) -> None:
        permit = self._take(name)
        if permit is None:
            ended = Ended(name, witness, record)
            self.unknown += self._hand_on is None or not self._hand_on(name, ended)
            return
        self.outcomes += 1
        permit.witness = witness
        try:
            self._report(permit, record)
        except Exception:
            logger.exception("envoy.defect: an outcome counts as neutral")
            self._agent.report(permit, Outcome.NEUTRAL)

    def _report(self, permit: Permit, record: Record) -> None:
        agent, flags = self._agent, record.flags
        sent = record.attempts
        if sent is not None and _OVERFLOW in flags:
            sent -= 1
        if sent is not None and sent > 1:
            repeated = min(sent, MAX_ATTEMPTS) - 1
            self.repeated += repeated
            agent.charge_again(permit, repeated)
        kind = next((FAILURES[flag] for flag in flags if flag in FAILURES), None)
        # The time is known once the upstream has begun its answer. Envoy's own answer to gRPC has 200, too.
        broken_off = kind is not None and record.elapsed_s is not None and 0 < record.code < 500
        if broken_off:
            # The upstream may have stopped, or its patience with a client that does not read has ended.
            kind = None
        if kind is None and _NO_MORE in flags and record.code < 400 and not record.rpc:
            kind = _NO_MORE_KIND
        if kind is not None:
            note_failure(permit, kind)
            agent.report(permit, Outcome.FAILURE)
        elif sent is not None and sent <= 0:
            # Another filter refused the request after the permit, or Envoy answered itself.
            agent.give_back(permit)
        elif broken_off or not NEUTRAL.isdisjoint(flags) or not record.code:
            agent.report(permit, Outcome.NEUTRAL)
        else:
            # The time of several attempts, or of a whole stream, does not say that the upstream is slow.
            whole = permit.parts is not None or (sent is not None and sent > 1)
            elapsed_s = None if whole else record.elapsed_s
            if record.rpc:
                asked = [(PUSHBACK, record.pushback)] if record.pushback else []
                report_rpc(agent, permit, RpcStatus(record.rpc, record.details, asked), elapsed_s)
            else:
                report_answer(agent, permit, record.code, retry_after=record.retry_after, elapsed_s=elapsed_s)


def _texts(attributes: Sequence[pb.KeyValue]) -> dict[bytes, bytes]:
    return {one.key: one.value.string_value for one in attributes[:MAX_ATTRIBUTES]}


def _read(texts: dict[bytes, bytes]) -> Record | None:
    """``None`` for a request without a permit. Envoy writes ``-`` for what it does not know."""
    permits = texts.get(b"permit", b"").decode("ascii", "replace").split(",", _MAX_PERMITS)
    names = [name for name in permits[:_MAX_PERMITS] if name not in _UNKNOWN]
    if not names:
        return None
    retry_after = texts.get(b"retry_after", b"")[:_MAX_TEXT].decode("latin-1")
    elapsed_ms = _number(texts.get(b"duration_ms", b""), _MAX_MS)
    rpc = _number(_first(texts.get(b"grpc_status", b"")).encode("latin-1"), _MAX_RPC)
    return Record(
        permits=tuple(names),
        code=_number(texts.get(b"code", b""), 999) or 0,
        flags=tuple(texts.get(b"flags", b"").split(b",")),
        elapsed_s=None if elapsed_ms is None else elapsed_ms / 1000,
        attempts=_number(texts.get(b"attempts", b""), 10_000),
        retry_after="" if retry_after == "-" else retry_after,
        rpc="" if rpc is None else name_of(rpc),
        pushback=_first(texts.get(b"pushback_ms", b"")),
        details=texts.get(b"grpc_message", b"")[: 3 * _MAX_TEXT].decode("latin-1"),
    )


def _first(text: bytes) -> str:
    """The first word of headers and trailers that Envoy knows."""
    words = text[:_MAX_TEXT].decode("latin-1").split()
    return next((word for word in words if word not in _UNKNOWN), "")


def _number(text: bytes, most: int) -> int | None:
    """A whole number, cut to ``most``; ``None`` for any other text."""
    return min(int(text), most) if text.isdigit() and len(text) <= 18 else None
