"""A process of an experiment: it reads lines, and says when it is ready and what it has found."""

import json
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import Any

from controlplane.installation import FOLDER as PROJECT

#: On a machine where each of twenty takes a second of CPU to start.
READY_S = 120.0


class Child:
    """``python -m MODULE ARGUMENTS``, ended at the latest with ``stack``."""

    def __init__(self, stack: ExitStack, module: str, *arguments: str) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._end)

    def _end(self) -> None:
        process = self._process
        if process.poll() is None:
            process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        process.wait()

    def line(self) -> str:
        """The next one that it says, without its end."""
        assert self._process.stdout is not None
        # A process that ends before closes its end: no wait is without end but that of one that hangs.
        guard = threading.Timer(READY_S, self._process.kill)
        guard.start()
        try:
            line = self._process.stdout.readline()
        finally:
            guard.cancel()
        if not line:
            raise RuntimeError(f"{self._module} ended, or said nothing for {READY_S:.0f} s")
        return line.rstrip("\n")

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def found(self, within_s: float) -> Any:
        """Its last line, as JSON."""
        out, _ = self._process.communicate(timeout=within_s + READY_S)
        if self._process.returncode:
            raise RuntimeError(f"{self._module} ended with {self._process.returncode}")
        return json.loads(out)
