"""One heartbeat: what this pod reports, and what the gateway answers."""

import logging
from collections.abc import Callable
from enum import StrEnum
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from fuseboard.configuration.server_clock import lease_clock
from fuseboard.contract.heartbeat_size import cut_to
from fuseboard.contract.load import CallLoad, PodLoad
from fuseboard.contract.portable import Portable
from fuseboard.contract.shares import HeldShare
from fuseboard.contract.sync import (
    SYNC_PATH,
    AllowedAlone,
    Applied,
    BreakerView,
    SeenLimit,
    SyncRequest,
    SyncResponse,
    Uncharged,
    decode_response,
    encode,
)
from fuseboard.contract.words import Mode
from fuseboard.reporting.counters import Counters
from fuseboard.reporting.http_response import HttpResponse, ResponseError
from fuseboard.reporting.loop_port import LoopGoneError
from fuseboard.reporting.primitive_figures import PrimitiveFigures
from fuseboard.reporting.refusal_samples import RefusalSamples
from fuseboard.reporting.sidecar_figures import SidecarFigures
from fuseboard.reporting.tenant_tallies import TenantTallies
from fuseboard.reporting.token import TokenSource
from fuseboard.settings import AgentSettings

if TYPE_CHECKING:
    from fuseboard.reporting.connection import Connection

log = logging.getLogger("fuseboard.sync")

#: A heartbeat is never longer. Half of it is for fields that later versions add.
HEARTBEAT_BYTES = 65_536
FIELDS_BYTES = HEARTBEAT_BYTES // 2
READ_TIMEOUT_S = 2.0
TOTAL_TIMEOUT_S = 5.0
#: The last heartbeat of a process that stops.
LEAVING_TIMEOUT_S = 0.4


class HeartbeatFailure(StrEnum):
    """Why a heartbeat failed."""

    #: No connection, an incomplete answer, or a certificate that does not match.
    UNREACHABLE = "unreachable"
    #: 429 or 5xx: temporary.
    BUSY = "busy"
    #: 401 or 403: the token is wrong, and a person has to act.
    REFUSED = "refused"
    #: The answer is not from a gateway, or the gateway is broken.
    WRONG = "wrong"


class FailedHeartbeatError(Portable, Exception):
    """The gateway refused a heartbeat, or its answer cannot be used."""

    def __init__(self, failure: HeartbeatFailure, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.failure, self.retry_after_s = failure, retry_after_s


class PodState(Struct, frozen=True, kw_only=True):
    """The state of the loop for one heartbeat: fields of ``SyncRequest``."""

    applied: Applied
    mode: Mode
    mode_for_ms: int
    mode_cause: str
    breakers: tuple[BreakerView, ...]
    want: tuple[str, ...]
    share: HeldShare | None = None
    protection: tuple[CallLoad, ...] = ()
    load: PodLoad | None = None
    alone: AllowedAlone | None = None
    uncharged: tuple[Uncharged, ...] = ()
    seen: tuple[SeenLimit, ...] = ()


class Exchange(Struct, frozen=True, kw_only=True):
    """A heartbeat with its answer. Both moments are of the monotonic clock."""

    request: SyncRequest
    response: SyncResponse
    asked_ns: int
    answered_ns: int
    #: When it was sent, on ``lease_clock``.
    asked_s: float = field(default_factory=lease_clock)


class Gateway:
    """The gateway, used from one thread."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        counters: Counters,
        state: Callable[[], PodState],
        refusals: RefusalSamples | None = None,
        primitives: PrimitiveFigures | None = None,
        sidecar: SidecarFigures | None = None,
    ) -> None:
        self._settings, self._counters, self._state = settings, counters, state
        self._refusals = refusals or RefusalSamples()
        self._primitives = primitives or PrimitiveFigures()
        self._sidecar = sidecar or SidecarFigures()
        self._tallies, self._usage = TenantTallies(counters), counters.usage
        self._began = monotonic()
        self._sequence = 0
        self._boot = uuid4().hex
        self._last_state: PodState | None = None
        self._token = TokenSource(settings.token, settings.token_file)
        self._connection = self._connect(READ_TIMEOUT_S, TOTAL_TIMEOUT_S)

    def send_heartbeat(self) -> Exchange:
        """Raises ``FailedHeartbeatError``, or ``LoopGoneError`` until the loop has described its state."""
        return self._exchange(self._connection, leaving=False)

    def leave(self) -> None:
        """Sign off, quickly, on a separate connection. Raises like ``beat``."""
        self.close()
        farewell = self._connect(LEAVING_TIMEOUT_S, LEAVING_TIMEOUT_S)
        try:
            self._exchange(farewell, leaving=True)
        except FailedHeartbeatError:
            if self._usage.left:
                log.warning("usage.lost: the ledger lacks what this pod used last: %d rows", self._usage.left)
            raise
        finally:
            farewell.close()

    def close(self) -> None:
        self._connection.close()

    def _connect(self, timeout_s: float, total_s: float) -> "Connection":
        # HTTP of the standard library is 2 MB, which a pod without a gateway does not need.
        from fuseboard.reporting.connection import Connection

        return Connection(
            self._settings.url.rstrip("/") + SYNC_PATH,
            headers={"User-Agent": f"fuseboard-agent/{agent_version()}"},
            timeout_s=timeout_s,
            total_s=total_s,
            ca_file=self._settings.ca_file,
        )

    def _exchange(self, connection: "Connection", *, leaving: bool) -> Exchange:
        request = self._request(leaving=leaving)
        connection.authorize(self._token.current())
        asked_ns, asked_s = monotonic_ns(), lease_clock()
        try:
            answer = connection.post(encode_bounded(request))
        except (OSError, ResponseError) as error:
            raise FailedHeartbeatError(
                HeartbeatFailure.UNREACHABLE, f"{type(error).__name__}: {error}"
            ) from error
        answered_ns = monotonic_ns()
        response = read_answer(answer)
        self._tallies.taken()
        self._sidecar.descriptors.taken()
        if request.usage:
            self._usage.taken(response.usage_taken)
        return Exchange(
            request=request,
            response=response,
            asked_ns=asked_ns,
            answered_ns=answered_ns,
            asked_s=asked_s,
        )

    def _request(self, *, leaving: bool) -> SyncRequest:
        state = self._state_of_loop()
        state = replace(state, mode_cause=_encodable(state.mode_cause[:500]), breakers=state.breakers[:500])
        self._sequence += 1
        return SyncRequest(
            environment=self._settings.environment,
            service=self._settings.service,
            server=self._settings.server,
            zone=_encodable(self._settings.zone),
            boot=self._boot,
            sequence=self._sequence,
            agent_version=agent_version(),
            carries_counts=True,
            enforces_budgets=True,
            serves_node=self._settings.serves_node,
            up_ms=int((monotonic() - self._began) * 1000),
            counters=self._counters.wire(),
            leaving=leaving,
            refusals=self._refusals.drain(),
            failures=self._counters.failures(),
            tally=self._tallies.next(leaving=leaving),
            usage=self._usage.next(leaving=leaving),
            primitives=self._primitives.wire(),
            descriptors=self._sidecar.descriptors.next(),
            permits=self._sidecar.permits() if self._sidecar.permits is not None else None,
            **asdict(state),
        )

    def _state_of_loop(self) -> PodState:
        """The current state of the loop, or the last one: a busy loop must not make the pod look dead."""
        try:
            self._last_state = self._state()
        except LoopGoneError:
            if self._last_state is None:
                raise
        return self._last_state


def read_answer(answer: HttpResponse) -> SyncResponse:
    """The response in an HTTP answer. Raises ``FailedHeartbeatError`` for every other answer."""
    status = answer.status
    if status in (401, 403):
        raise FailedHeartbeatError(
            HeartbeatFailure.REFUSED, f"{status}: is FUSEBOARD_TOKEN valid, for this environment?"
        )
    if status == 429 or status >= 500:
        retry_after_s = _seconds(answer.retry_after)
        raise FailedHeartbeatError(HeartbeatFailure.BUSY, f"status {status}", retry_after_s=retry_after_s)
    if status != 200:
        raise FailedHeartbeatError(
            HeartbeatFailure.WRONG, f"status {status}: is FUSEBOARD_URL the gateway's address?"
        )
    if answer.content_type != "application/json":
        raise FailedHeartbeatError(
            HeartbeatFailure.WRONG, f"answered {answer.content_type}, not application/json"
        )
    try:
        return decode_response(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FailedHeartbeatError(HeartbeatFailure.WRONG, f"unreadable answer: {error}") from error


def encode_bounded(request: SyncRequest) -> bytes:
    """The request, its fields in at most ``FIELDS_BYTES``: ``contract/heartbeat_size.py`` says what is cut
    first.
    """
    # Parts are small, and must not be cut: what they list is counted once.
    parts = {"tally": request.tally, "usage": request.usage, "descriptors": request.descriptors}
    if not any(parts.values()):
        return _cut(request, FIELDS_BYTES)[1]
    room = min(FIELDS_BYTES, HEARTBEAT_BYTES - len(encode(parts)))
    return encode(replace(_cut(replace(request, tally=None, usage=(), descriptors=None), room)[0], **parts))


def _cut(request: SyncRequest, most: int) -> tuple[SyncRequest, bytes]:
    cut, body = cut_to(request, most, encode)
    if cut.cut:
        log.info("heartbeat.cut %d entries, to stay below %d bytes", cut.cut, most)
    return cut, body


def _encodable(text: str) -> str:
    """Without halves of characters, which errors and variables of the system can have: JSON has none."""
    return text.encode(errors="replace").decode()


def agent_version() -> str:
    # Loads a quarter of the mail library.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fuseboard")
    except PackageNotFoundError:
        return "0"


def _seconds(retry_after: str) -> float:
    """Retry-After in seconds; 0 for a date, which would need the pod's own clock."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
