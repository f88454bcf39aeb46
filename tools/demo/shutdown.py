"""The last checkpoint: everything has stopped."""

import os
import signal
import time
from pathlib import Path

from controlplane import embedded
from controlplane.embedded.children import port_is_free
from tools.demo.data_dir import MARK
from tools.demo.services import Demo
from tools.demo.story.chapter import CheckFailed

_GRACE_S = 15.0


def clean_exit(demo: Demo) -> str:
    """Stop everything, also the embedded servers; then look for processes and ports of this demo."""
    began = time.monotonic()
    servers = {variable: embedded.look_up(variable, folder=demo.folder) for variable in embedded.SERVERS}
    ports = [process.port for process in demo.processes.by_name.values() if process.port]
    ports += [int(running.url.rpartition(":")[2].partition("/")[0]) for running in servers.values()]
    demo.close()
    for running in servers.values():
        os.kill(running.keeper, signal.SIGTERM)
    while (left := _processes()) and time.monotonic() - began < _GRACE_S:
        time.sleep(0.05)
    taken = [port for port in ports if not port_is_free(port)]
    if left or taken:
        raise CheckFailed(f"processes left: {left or 'none'}; ports still in use: {taken or 'none'}")
    seconds = time.monotonic() - began
    return f"no process and none of {len(ports)} ports left after {seconds:.1f} s"


def _processes() -> list[str]:
    """Processes of this demo other than this one, found by a variable in their environment."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark in (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended during the search, or belongs to another user
            continue
        if marked and int(folder.name) != os.getpid():
            found.append(f"{folder.name} {command[:80]}")
    return found
