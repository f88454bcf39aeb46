"""Sidecars as processes of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

LISTEN = ("--listen", "127.0.0.1:0", "--probes", "127.0.0.1:0")


class Process:
    def __init__(self, process: "subprocess.Popen[str]", token_file: Path) -> None:
        self.process, self.token_file, self.token = process, token_file, "secret"
        assert process.stdout is not None
        #: The addresses that the process names, in its order.
        self.addresses: list[str] = []
        # The probes come last.
        while (line := process.stdout.readline()).startswith("listening "):
            self.addresses.append(line.strip().partition(" on ")[2])
        self.url = self.addresses[0]
        self.probes = line.removeprefix("probes and metrics on ").strip()

    def ready(self) -> int:
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
            return http.get(f"{self.probes}/readyz").status_code

    def post(self, path: str, body: str) -> tuple[int, str]:
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.token}"}
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
            answer = http.post(self.url + path, content=body, headers=headers)
        return answer.status_code, answer.text


@contextmanager
def sidecar(redis_url: str, folder: Path, *options: str, **more: str) -> Iterator[Process]:
    """``more`` are further variables."""
    token_file = folder / "token"
    token_file.write_text("secret\n")
    variables = {
        "FUSEBOARD_REDIS_URL": redis_url,
        "FUSEBOARD_SERVER": "shop-1",
        "FUSEBOARD_STATE_DIR": str(folder / "state"),
        "FUSEBOARD_SIDECAR_TOKEN_FILE": str(token_file),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUSEBOARD_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "fuseboard", "sidecar", *LISTEN, *options],
        cwd=ROOT,
        env=kept | variables | more,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Process(process, token_file)
    finally:
        # Workers of a process that is killed end a moment later, and their Redis may be gone by then.
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
