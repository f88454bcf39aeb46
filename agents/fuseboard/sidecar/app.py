"""Starts the agent and the listeners, and stops them in order."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from fuseboard.agent import Agent
from fuseboard.errors import Misconfigured
from fuseboard.reporting.token import TokenSource
from fuseboard.serving.http1 import MAX_LINGERING, Bounds, Connections
from fuseboard.serving.listeners import Listeners
from fuseboard.serving.open_files import allow_open_files
from fuseboard.serving.sockets import KNOWS_PEERS
from fuseboard.settings import AgentSettings
from fuseboard.sidecar.access import LoopbackAccess, TenantNames, UnixAccess
from fuseboard.sidecar.peers import OUTCOMES_PATH, Peers, Place
from fuseboard.sidecar.probes import Private, Probes
from fuseboard.sidecar.routes import Guarded, Sidecar

if TYPE_CHECKING:
    from fuseboard.envoy.access_log import AccessLog, Ended
    from fuseboard.envoy.bridge import Bridge
    from fuseboard.envoy.grpc_server import GrpcListener, GrpcServer
    from fuseboard.envoy.service import RateLimitService

logger = logging.getLogger("fuseboard.sidecar")

#: A sidecar that stops leaves when its application has had no connection for this time.
QUIET_S = 1.0
_LOOK_S = 0.05
#: Files besides the connections that are counted: Redis, the gateway, probes, workers and what Python opens.
OWN_FILES = 500
#: A worker writes this line when it decides.
READY = "ready"
#: The other workers, which hand reports on, and the process that started them all.
PRIVATE = Bounds(body_bytes=2 * 2**20, idle_s=3_600.0)
#: Probes and scrapes. Anyone may ask, so each connection has one request and little time.
FEW = Bounds(connections=64, idle_s=5.0, keeps_open=False)

#: The bytes of a request of Envoy. A larger one gets no decision, and its client would escape all limits. By
#: default, Envoy takes 60 KiB of headers: several descriptors may have them, and traces pass them on.
ENVOY_HEAD_BYTES, ENVOY_BODY_BYTES = 64 * 1024, 2**20

Address = tuple[str, int]
#: Lines of metrics.
Metrics = Callable[[], Iterable[str]]


class Options(Struct, frozen=True, kw_only=True):
    """``None`` is no such listener."""

    listen: Address | None = ("127.0.0.1", 7480)
    #: ``None`` asks for no token.
    token: TokenSource | None = None
    unix: str | None = None
    #: The unix socket of Envoy's filters.
    envoy_unix: str | None = None
    #: Where Envoy's filters ask over gRPC.
    envoy_grpc: "GrpcListener | None" = None
    #: Users that may use the unix sockets; none for all that their mode admits.
    uids: frozenset[int] = frozenset()
    probes: Address | None = None
    #: The tenants that the application may use; ``None`` for all.
    tenants: TenantNames | None = None
    #: How long the application is waited for when the sidecar stops.
    drain_s: float = 5.0
    bounds: Bounds = Bounds()
    #: The place of a worker among the others; ``None`` for a sidecar of one process.
    place: Place | None = None


class Running(Struct, frozen=True):
    """A sidecar that runs, and the ports of its listeners."""

    agent: Agent
    sidecar: Sidecar
    #: The connections of applications and of Envoy: one for each listener.
    connections: tuple[Connections, ...]
    port: int = 0
    probes_port: int = 0
    #: The rate limit service, if Envoy has a listener.
    envoy: "RateLimitService | None" = None
    #: The outcomes that Envoy's access log brings.
    access_log: "AccessLog | None" = None
    grpc: "GrpcServer | None" = None


@asynccontextmanager
async def running(settings: AgentSettings, options: Options) -> AsyncIterator[Running]:
    """A sidecar with its agent. Raises ``Misconfigured`` if an address cannot be used."""
    listeners = Listeners()
    # Each has its own bounds: a process without access to the unix socket cannot use its connections up.
    fair = settings.serves_node and KNOWS_PEERS
    tcp, local = Connections(options.bounds), Connections(options.bounds, fair=fair)
    connections: tuple[Connections, ...] = (tcp, local)
    async with Agent(settings=settings) as agent:
        place = options.place
        sidecar = Sidecar(agent, tenants=options.tenants, place=place, fair=fair)
        listeners.on_sweep.append(sidecar.sweep)
        port = probes_port = 0
        envoy: RateLimitService | None = None
        log: AccessLog | None = None
        grpc: GrpcServer | None = None
        more: Metrics = tuple
        servers = AsyncExitStack()
        try:
            if options.listen is not None:
                service = Guarded(sidecar, LoopbackAccess(options.token))
                host, port = options.listen
                if place is not None:
                    port = place.port
                listening = listeners.listen_tcp(service, tcp, host, port, shares_port=place is not None)
                port = await listens("--listen", options.listen, listening)
            if options.unix is not None:
                service = Guarded(sidecar, UnixAccess(options.uids))
                opening = _listen_unix(listeners, service, local, options.unix, place)
                await listens("--unix", options.unix, opening)
            if options.envoy_unix is not None or options.envoy_grpc is not None:
                envoy, log = _for_envoy(agent, sidecar)
                if options.envoy_unix is not None:
                    # Envoy waits for an answer before its next request.
                    sizes = {"head_bytes": ENVOY_HEAD_BYTES, "body_bytes": ENVOY_BODY_BYTES, "pipelined": 1}
                    filters = Connections(replace(options.bounds, **sizes))
                    connections += (filters,)
                    service = Guarded(_bridge(envoy, log), UnixAccess(options.uids))
                    opening = _listen_unix(listeners, service, filters, options.envoy_unix, place)
                    await listens("--envoy-unix", options.envoy_unix, opening)
                if options.envoy_grpc is not None:
                    grpc = await _serve_grpc(servers, envoy, log, options.envoy_grpc)
                more = _figures(envoy, log, grpc, agent.settings.server)
            probes = Probes(agent, sidecar, connections, more)
            if place is not None:
                own, private = (
                    place.socket(place.number),
                    Private(sidecar, probes, None if log is None else log.take_ended),
                )
                opening = listeners.listen_unix(private, Connections(PRIVATE), own)
                await listens("the private socket", own, opening)
            elif options.probes is not None:
                listening = listeners.listen_tcp(probes, Connections(FEW), *options.probes)
                probes_port = await listens("--probes", options.probes, listening)
            _check_open_files(connections, 0 if grpc is None else grpc.most_connections)
            yield Running(agent, sidecar, connections, port, probes_port, envoy, log, grpc)
        finally:
            await servers.aclose()
            await listeners.stop()
            # Before the agent stops: it sends what is left to report.
            await sidecar.stop()


def _for_envoy(agent: Agent, sidecar: Sidecar) -> "tuple[RateLimitService, AccessLog]":
    """The services that Envoy asks. A sidecar without Envoy needs no protobuf."""
    from fuseboard.envoy.access_log import AccessLog
    from fuseboard.envoy.service import RateLimitService

    service = RateLimitService(
        agent, keep=lambda permit: sidecar.keep_permit(permit)[0], take=sidecar.permits.take
    )
    hand_on = None if sidecar.peers is None else _hand_on(sidecar.peers)
    return service, AccessLog(agent, take=sidecar.permits.take, hand_on=hand_on)


def _figures(
    service: "RateLimitService", log: "AccessLog", grpc: "GrpcServer | None", server: str
) -> Metrics:
    from fuseboard.envoy import figures

    return partial(figures.lines, service, log, grpc, server)


def _hand_on(peers: Peers) -> "Callable[[str, Ended], bool]":
    """Another worker may have the permit that Envoy's access log names."""
    return lambda name, ended: peers.hand_on(name, OUTCOMES_PATH, ended)


def _bridge(service: "RateLimitService", log: "AccessLog") -> "Bridge":
    from fuseboard.envoy.bridge import Bridge

    return Bridge(service, log)


async def _serve_grpc(
    servers: AsyncExitStack, service: "RateLimitService", log: "AccessLog", listener: "GrpcListener"
) -> "GrpcServer":
    """A sidecar behind a bridge needs no gRPC."""
    from fuseboard.envoy.bridge import methods
    from fuseboard.envoy.grpc_server import GrpcServer, serving

    started = serving(
        methods(service, log), listener, head_bytes=ENVOY_HEAD_BYTES, body_bytes=ENVOY_BODY_BYTES
    )
    entering = servers.enter_async_context(started)
    server: GrpcServer = await listens("--envoy-grpc", listener.address, entering)
    return server


async def _listen_unix(
    listeners: Listeners, service: Guarded, connections: Connections, path: str, place: Place | None
) -> None:
    """A worker accepts from the socket that all share."""
    if place is None:
        await listeners.listen_unix(service, connections, path)
    else:
        shared = socket.socket(fileno=place.unix_fds[path])
        await listeners.accept_from(service, connections, shared)


def needed_files(listeners: Iterable[Bounds], others: int = 0) -> int:
    """The files that a sidecar opens when these listeners, and ``others``, have all their connections."""
    return OWN_FILES + others + sum(one.connections + MAX_LINGERING for one in listeners)


def _check_open_files(connections: Iterable[Connections], others: int) -> None:
    """Beyond this limit, connections would wait, and Redis could not be connected again."""
    needed = needed_files([those.bounds for those in connections], others)
    if (allowed := allow_open_files(needed)) < needed:
        logger.warning(
            "sidecar.open_files: this process may open %d files, and all its connections need %d: "
            "raise the hard limit, as with LimitNOFILE or ulimit -Hn",
            allowed,
            needed,
        )


async def drain(running: Running, drain_s: float, leave: asyncio.Event) -> None:
    """Decide on until the application has left, or ``leave`` is set.

    A sidecar container of Kubernetes ends after the application: then nothing is connected or under way. In
    an ordinary container the signal comes to both at once, and the application ends its work first. Its
    clients may close their connections between two requests, so calls without a report are waited for, too.
    """
    sidecar, grpc = running.sidecar, running.grpc
    sidecar.stopping = True
    begun = quiet_since = monotonic()
    while (now := monotonic()) < begun + drain_s and now < quiet_since + QUIET_S and not leave.is_set():
        elsewhere = 0 if sidecar.peers is None else len(sidecar.peers)
        if any(map(len, running.connections)) or len(sidecar.permits) or len(sidecar.holds) or elsewhere:
            quiet_since = now
        elif grpc is not None:
            # gRPC does not count its connections.
            quiet_since = now if grpc.active else max(quiet_since, grpc.since)
        await asyncio.sleep(_LOOK_S)


def run(settings: AgentSettings, options: Options) -> None:
    """Until SIGTERM or SIGINT. Raises ``Misconfigured``."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_until_signalled(settings, options))


async def _until_signalled(settings: AgentSettings, options: Options) -> None:
    stop, leave, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)

    def at_once() -> None:
        leave.set()
        stop.set()

    # A person at a terminal does not wait.
    loop.add_signal_handler(signal.SIGINT, at_once)
    async with running(settings, options) as started:
        if options.place is None:
            grpc_port = 0 if started.grpc is None else started.grpc.port
            lines = addresses(options, started.port, started.probes_port, grpc_port)
        else:
            # A library may have printed the beginning of a line.
            lines = ["", READY]
            # The process that started this worker has its other end: the worker ends when that does.
            when_it_ends(sys.stdin.fileno(), stop.set)
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        if options.place is not None:
            # The other process reads nothing more: a worker that printed into a full pipe would wait forever.
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        logger.info("sidecar.started: %s", settings)
        await stop.wait()
        logger.info("sidecar.stopping: for at most %g s", options.drain_s)
        await drain(started, options.drain_s, leave)


def when_it_ends(file: int, act: Callable[[], object]) -> None:
    """Call ``act`` once, when the other end of a pipe is closed. Nothing is written to it."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        # A pipe without another end can be read all the time.
        loop.remove_reader(file)
        act()

    loop.add_reader(file, ended)


def addresses(options: Options, port: int, probes_port: int, grpc_port: int = 0) -> list[str]:
    """The lines that name the listeners."""
    lines = []
    if options.listen is not None:
        lines.append(f"listening on {url_of(options.listen[0], port)}")
    if options.unix is not None:
        lines.append(f"listening on unix:{options.unix}")
    if options.envoy_unix is not None:
        lines.append(f"listening for Envoy on unix:{options.envoy_unix}")
    if options.envoy_grpc is not None:
        address = options.envoy_grpc.address
        where = f"unix:{address}" if isinstance(address, str) else _host_and_port(address[0], grpc_port)
        lines.append(f"listening for Envoy on {where}, over gRPC")
    if options.probes is not None:
        lines.append(f"probes and metrics on {url_of(options.probes[0], probes_port)}")
    return lines


def url_of(host: str, port: int) -> str:
    return f"http://{_host_and_port(host, port)}"


def _host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def listens(option: str, address: Address | str, listening: Awaitable[Any]) -> Any:
    """Return the result of ``listening``. Raises ``Misconfigured``, with the address, for its ``OSError``."""
    try:
        return await listening
    except OSError as error:
        named = address if isinstance(address, str) else "{}:{}".format(*address)
        raise Misconfigured(f"{option} {named} cannot be used: {error.strerror or error}") from None


def loop_factory() -> Callable[[], Any] | None:
    """That of uvloop if it is installed."""
    if find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
