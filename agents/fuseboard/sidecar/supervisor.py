"""``fuseboard sidecar --workers``: starts the workers, restarts one that dies, and answers their probes.

The workers share the listening sockets. This process decides nothing, and handles no connection of an
application.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic
from typing import Any

import msgspec

from fuseboard.cancellation import stop_tasks, wait_for_event
from fuseboard.contract.pod_figures import PodFigure
from fuseboard.errors import Misconfigured
from fuseboard.integrations.pod_answers import METRICS_TEXT
from fuseboard.serving.exchange import Answer, Request
from fuseboard.serving.http1 import Connections
from fuseboard.serving.listeners import BACKLOG, Listeners
from fuseboard.serving.sockets import unix_socket
from fuseboard.serving.unix_client import UnixClient
from fuseboard.settings import AgentSettings
from fuseboard.sidecar import answers
from fuseboard.sidecar.app import FEW, READY, Options, addresses, listens, loop_factory
from fuseboard.sidecar.peers import Place
from fuseboard.sidecar.probes import HEALTHY, STOPPING, path_of, refuse
from fuseboard.telemetry.prometheus_text import family

logger = logging.getLogger("fuseboard.sidecar")

#: A worker that has died is started again after the first time, then after twice that, up to the last one.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
#: The running time after which a worker that dies is started with the first pause again.
STEADY_S = 60.0
#: The time beyond ``drain_s`` after which a worker that is told to stop is killed.
STOP_S = 10.0

#: The figures of this process, beside those of its workers.
RESTARTS = PodFigure(
    "fuseboard.sidecar.workers.restarts", "", "Workers that died, and were started again.", total=True
)
ANSWERING = PodFigure("fuseboard.sidecar.workers", "", "Workers that answer.")


class Worker:
    """One worker, which is started again when it dies."""

    def __init__(self, command: Sequence[str], place: Place) -> None:
        self._command = [*command, "--worker", msgspec.json.encode(place).decode()]
        self.place = place
        self._fds = tuple(place.unix_fds.values())
        self._process: Process | None = None
        #: How often it decided again after it had died.
        self.restarts = 0
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Returns when the worker decides. Raises ``Misconfigured`` if it ends before that."""
        # The worker ends when its input does, so none is left without this process.
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, pass_fds=self._fds
        )
        if self._stopping.is_set():
            self._process.terminate()  # the signal came before there was a process
        output = self._process.stdout
        while (line := await _next_line(output)) != f"{READY}\n".encode():
            if not line:
                raise Misconfigured(f"worker {self.place.number} did not start: its lines above say why")
            # A library, or a hook of the interpreter, may print before the worker is ready.
            if text := line.decode(errors="replace").rstrip():
                logger.info("sidecar.worker_printed: worker %d: %s", self.place.number, text)

    async def keep(self) -> None:
        """Start it again whenever it dies, until ``stop``."""
        pause_s = FIRST_PAUSE_S
        while (process := self._process) is not None:
            begun = monotonic()
            code = await process.wait()
            if self._stopping.is_set():
                return
            if monotonic() - begun > STEADY_S:
                pause_s = FIRST_PAUSE_S
            logger.error("sidecar.worker_died: worker %d, code %d", self.place.number, code)
            if await wait_for_event(self._stopping, pause_s):
                return
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                await self.start()
                self.restarts += 1
            except (Misconfigured, OSError) as error:
                # The machine may be short of memory or processes: the next attempt comes later.
                logger.error("sidecar.worker_not_started: %s", error)

    def signal(self, number: int) -> None:
        """Tell it to stop."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def end(self, within_s: float) -> None:
        """Wait for its end, and kill it if it takes longer."""
        if self._process is None:
            return
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            logger.error("sidecar.worker_killed: worker %d did not end", self.place.number)
            self._process.kill()
            await self._process.wait()


class WorkerProbes:
    """The second listener: passes probes and scrapes on to the workers."""

    problem = staticmethod(answers.problem)

    def __init__(self, workers: Sequence[Worker], server: str) -> None:
        self._workers, self._server = workers, server
        self.stopping = False

    def handle(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        if (refused := refuse(request)) is not None:
            return refused
        path = path_of(request)
        if self.stopping and path == "/readyz":
            return STOPPING
        return self._answer(path)

    async def _answer(self, path: str) -> Answer:
        # The client uses timeouts, which need a task.
        await asyncio.sleep(0)
        found = await asyncio.gather(*(_asked(worker, path) for worker in self._workers))
        if path == "/metrics":
            return Answer(200, self._merged([body for _, body in found]), METRICS_TEXT)
        if path == "/healthz" and all(status == 200 for status, _ in found):
            return HEALTHY
        if path == "/healthz":
            silent = [
                worker.place.number
                for worker, (status, _) in zip(self._workers, found, strict=True)
                if status != 200
            ]
            return Answer(503, msgspec.json.encode({"healthy": False, "silent_workers": silent}))
        # Connections go to workers that are there: one that is ready is enough.
        status, body = min(found, key=lambda one: one[0] or 503)
        return Answer(status or 503, body or b'{"ready": false, "because": "no worker answers"}')

    def _merged(self, texts: Sequence[bytes]) -> bytes:
        """The figures of all workers. Each sample names its worker, as ``server``."""
        families: dict[str, list[str]] = {}
        for text in texts:
            named: list[str] = []
            for line in text.decode().splitlines():
                if line.startswith("# HELP "):
                    named = families.setdefault(line, [])
                elif not line.startswith("# TYPE ") or line not in named:
                    named.append(line)
        lines = [line for help_line, more in families.items() for line in (help_line, *more)]
        answering = sum(bool(text) for text in texts)
        restarts = sum(worker.restarts for worker in self._workers)
        for figure, value in ((ANSWERING, answering), (RESTARTS, restarts)):
            lines += family(figure, [((), value)], self._server)
        return "".join(f"{line}\n" for line in lines).encode()


async def _next_line(output: asyncio.StreamReader | None) -> bytes:
    """The next line of a worker; dots for a part of one of over 64 KiB, and nothing at the end."""
    try:
        return await output.readline() if output else b""
    except ValueError:
        return b"...\n"


async def _asked(worker: Worker, path: str) -> tuple[int, bytes]:
    """Status and body of a worker's answer; 0 if it does not answer."""
    client = UnixClient(worker.place.socket(worker.place.number))
    try:
        return await client.ask("GET", path)
    except OSError:
        return 0, b""
    finally:
        client.close()


def run(settings: AgentSettings, options: Options, command: Sequence[str], workers: int) -> None:
    """Until SIGTERM or SIGINT. ``command`` starts a worker. Raises ``Misconfigured``."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_until_signalled(settings, options, command, workers))


async def _until_signalled(
    settings: AgentSettings, options: Options, command: Sequence[str], count: int
) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(_private_folder())
        port = 0
        if options.listen is not None:
            reserved = stack.enter_context(_reserved(options.listen))
            port = reserved.getsockname()[1]
        named = (("--unix", options.unix), ("--envoy-unix", options.envoy_unix))
        unix_fds = {
            path: stack.enter_context(_shared(option, path)).fileno()
            for option, path in named
            if path is not None
        }
        places = [
            Place(
                number=number,
                of=count,
                server=f"{settings.server}-{number}",
                folder=folder,
                unix_fds=unix_fds,
                port=port,
            )
            for number in range(1, count + 1)
        ]
        workers = [Worker(command, place) for place in places]
        await _work(settings, options, workers, port)


async def _work(settings: AgentSettings, options: Options, workers: Sequence[Worker], port: int) -> None:
    stop, loop, listeners = asyncio.Event(), asyncio.get_running_loop(), Listeners()
    probes = WorkerProbes(workers, settings.server)

    def pass_on(number: int) -> None:
        probes.stopping = True
        for worker in workers:
            worker.signal(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, pass_on, number)
    keeping: list[asyncio.Task[None]] = []
    try:
        try:
            await asyncio.gather(*(worker.start() for worker in workers))
        except Misconfigured:
            if stop.is_set():
                return  # told to stop before it had started
            raise
        keeping += [asyncio.create_task(worker.keep()) for worker in workers]
        probes_port = 0
        if options.probes is not None:
            listening = listeners.listen_tcp(probes, Connections(FEW), *options.probes)
            probes_port = await listens("--probes", options.probes, listening)
        sys.stdout.write("".join(f"{line}\n" for line in addresses(options, port, probes_port)))
        sys.stdout.flush()
        logger.info("sidecar.started: %d workers", len(workers))
        await stop.wait()
        logger.info("sidecar.stopping: for at most %g s", options.drain_s)
    finally:
        if not stop.is_set():
            pass_on(signal.SIGINT)
        await asyncio.gather(*(worker.end(options.drain_s + STOP_S) for worker in workers))
        await stop_tasks(*keeping, within_s=STOP_S)
        await listeners.stop()


@contextmanager
def _private_folder() -> Iterator[str]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="fuseboard-")
    except OSError as error:
        raise Misconfigured(
            f"--workers needs a folder for sockets: set TMPDIR to one that can be written ({error.strerror})"
        ) from None
    with folder as path:
        yield path


@contextmanager
def _reserved(address: tuple[str, int]) -> Iterator[socket.socket]:
    """A socket that holds the port for the workers, also while none runs, and does not listen itself."""
    host, port = address
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            # Before it may share: another sidecar that has the port must not lose connections to this one.
            sock.bind(address)
        except OSError as error:
            raise Misconfigured(f"--listen {host}:{port} cannot be used: {error.strerror or error}") from None
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield sock


@contextmanager
def _shared(option: str, path: str) -> Iterator[socket.socket]:
    """The unix socket that all workers accept from. What waits there survives a worker that dies."""
    try:
        sock = unix_socket(path)
        sock.listen(BACKLOG)
    except OSError as error:
        raise Misconfigured(f"{option} {path} cannot be used: {error.strerror or error}") from None
    with sock:
        try:
            yield sock
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)
