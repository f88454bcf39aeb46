"""Starts the agent and the listeners, and stops them in order."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from fuseboard.agent import Agent
from fuseboard.errors import Misconfigured
from fuseboard.reporting.token import TokenSource
from fuseboard.serving.http1 import Bounds, Connections
from fuseboard.serving.listeners import Listeners
from fuseboard.settings import AgentSettings
from fuseboard.sidecar.access import LoopbackAccess
from fuseboard.sidecar.routes import Sidecar

logger = logging.getLogger("fuseboard.sidecar")


class Options(Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 7480
    #: ``None`` asks for no token.
    token: TokenSource | None = None
    bounds: Bounds = Bounds()


class Running(Struct, frozen=True):
    """A sidecar that runs, and its port."""

    agent: Agent
    sidecar: Sidecar
    port: int


@asynccontextmanager
async def running(settings: AgentSettings, options: Options) -> AsyncIterator[Running]:
    """A sidecar with its agent. Raises ``Misconfigured`` if an address cannot be used."""
    listeners = Listeners(Connections(options.bounds))
    async with Agent(settings=settings) as agent:
        sidecar = Sidecar(agent, LoopbackAccess(options.token))
        listeners.on_sweep.append(sidecar.sweep)
        try:
            try:
                port = await listeners.listen_tcp(sidecar, options.host, options.port)
            except OSError as error:
                raise Misconfigured(
                    f"--listen {options.host}:{options.port} cannot be used: {error.strerror}"
                ) from None
            yield Running(agent, sidecar, port)
        finally:
            await listeners.stop()
            # Slots and probes are free now, not when they expire; the agent sends what is left to report.
            sidecar.permits.end_all()


def run(settings: AgentSettings, options: Options) -> None:
    """Until SIGTERM or SIGINT. Raises ``Misconfigured``."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_until_signalled(settings, options))


async def _until_signalled(settings: AgentSettings, options: Options) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(settings, options) as started:
        host = f"[{options.host}]" if ":" in options.host else options.host
        sys.stdout.write(f"listening on http://{host}:{started.port}\n")
        sys.stdout.flush()
        logger.info("sidecar.started: %s", settings)
        await stop.wait()
        logger.info("sidecar.stopping")


def _loop_factory() -> Callable[[], Any] | None:
    """That of uvloop if it is installed."""
    if find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
