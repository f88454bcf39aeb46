"""The servers whose CPU is compared: a sidecar, envoyproxy/ratelimit, and a bare one."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from control_plane.stand import PROJECT, Skip

from controlplane.embedded.children import last_lines
from controlplane.embedded.valkey import Valkey
from tests.agents.published import ENVIRONMENT
from tests.envoy.real_ratelimit import VARIABLE, NotStarted, serving
from tools.bench.http_pairs.callers import DOMAIN, ENTRY, TENANT_KEY

#: A limit that admits everything, and that every question spends.
MAX_PER_S = 50_000_000


class Server(NamedTuple):
    """``grpc_port`` is 0 for a server without gRPC."""

    pid: int
    port: int
    grpc_port: int = 0


def start(stack: ExitStack, command: list[str], environment: dict[str, str], log: Path) -> Server:
    """A process that prints where it listens, killed with the stack."""
    with log.open("wb") as errors:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=PROJECT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        )
    stack.callback(process.kill)
    assert process.stdout is not None
    found = re.search(r":(\d+)$", process.stdout.readline().strip())
    if found is None:
        raise SystemExit(f"{command[0]} did not start: {last_lines(log)}")
    return Server(process.pid, int(found[1]))


def start_sidecar(stack: ExitStack, url: str, folder: Path, *options: str) -> Server:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FUSEBOARD_")}
    environment |= {
        "FUSEBOARD_REDIS_URL": url,
        "FUSEBOARD_SERVER": "bench",
        "FUSEBOARD_STATE_DIR": str(folder),
        "FUSEBOARD_ENVIRONMENT": ENVIRONMENT,
    }
    usual = ["--listen", "127.0.0.1:0", "--no-token", "--probes", "off"]
    return start(stack, ["fuseboard", "sidecar", *usual, *options], environment, folder.with_suffix(".log"))


def start_floor(stack: ExitStack, folder: Path, *options: str) -> Server:
    return start(
        stack, ["tools.bench.http_pairs.floor", *options], dict(os.environ), folder.with_suffix(".log")
    )


def start_ratelimit(stack: ExitStack, valkey: Valkey, folder: Path) -> Server:
    """envoyproxy/ratelimit with limits that admit everything. Raises ``Skip``."""
    program = shutil.which(os.environ.get(VARIABLE) or "ratelimit")
    if program is None:
        raise Skip(f"{VARIABLE} names no program of envoyproxy/ratelimit")
    rate = {"rate_limit": {"unit": "second", "requests_per_unit": MAX_PER_S}}
    limits = {"domain": DOMAIN, "descriptors": [{**ENTRY, **rate}, {"key": TENANT_KEY, **rate}]}
    try:
        return Server(*stack.enter_context(serving(program, [limits], folder, valkey.url)))
    except NotStarted as error:
        raise Skip(f"it did not start: {error}") from None
