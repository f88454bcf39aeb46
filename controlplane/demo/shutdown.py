"""The last checkpoint: nothing is left."""

import os
import signal
import time
from pathlib import Path

from controlplane import embedded
from controlplane.demo.data_dir import MARK
from controlplane.demo.services import Stage
from controlplane.demo.story.chapter import Untrue
from controlplane.embedded.children import port_is_free

_GRACE_S = 15.0


def clean_exit(stage: Stage) -> str:
    """Stop everything, the embedded servers too; then look for processes and ports of this demo."""
    began = time.monotonic()
    servers = {variable: embedded.look_up(variable, folder=stage.folder) for variable in embedded.SERVERS}
    ports = [actor.port for actor in stage.troupe.actors.values() if actor.port]
    ports += [int(running.url.rpartition(":")[2].partition("/")[0]) for running in servers.values()]
    stage.close()
    for running in servers.values():
        os.kill(running.keeper, signal.SIGTERM)
    while (left := _processes()) and time.monotonic() - began < _GRACE_S:
        time.sleep(0.05)
    taken = [port for port in ports if not port_is_free(port)]
    if left or taken:
        raise Untrue(f"processes left: {left or 'none'}; ports still taken: {taken or 'none'}")
    seconds = time.monotonic() - began
    return f"no process and none of {len(ports)} ports left, {seconds:.1f} s after the last word"


def _processes() -> list[str]:
    """Processes of this demo other than this one, by the mark in their environment."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark in (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended while we looked, or is somebody else's
            continue
        if marked and int(folder.name) != os.getpid():
            found.append(f"{folder.name} {command[:80]}")
    return found
