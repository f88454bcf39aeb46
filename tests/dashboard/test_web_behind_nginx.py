"""Two web processes behind nginx, as docs/deployment.md has it: one is killed, and its sockets move over."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from tests.controlplane.web_process import database_url
from tests.waiting import wait_until
from tools.demo.processes import Process, Processes, free_port

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).parent.parent.parent
CLIENTS = 60
WEB = ("web-1", "web-2")


def configuration(folder: Path, port: int, upstreams: list[int]) -> str:
    """The configuration of the documentation, with the addresses of this test and without TLS."""
    page = (ROOT / "docs/deployment.md").read_text()
    section = page.partition("## Several web processes behind nginx")[2]
    block = section.partition("```nginx")[2].partition("```")[0]
    for number, upstream in zip(("1", "2"), upstreams, strict=True):
        block = block.replace(f"10.0.0.{number}:8000", f"127.0.0.1:{upstream}")
    block = block.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;\n"
        f"events {{ worker_connections 1024; }}\nhttp {{ access_log off;\n{temporary}{block} }}\n"
    )


@pytest.fixture
def nginx(production: str, tmp_path: Path) -> Iterator[tuple[str, Processes]]:
    """The address of nginx, and the web processes behind it."""
    binary = shutil.which("nginx")
    if binary is None:
        assert not os.environ.get("CI"), "nginx is not installed"
        pytest.skip("nginx is not installed")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "FUSEBOARD_DATA_DIR": str(tmp_path),
        "FUSEBOARD_PLAIN_HTTP": "1",
        "FUSEBOARD_ORIGINS": address,
        "FUSEBOARD_LOG_LEVEL": "WARNING",
    }
    processes = Processes(tmp_path / "logs")
    arguments = ["manage.py", "web", "--exactly", "--port", "{port}"]
    for name in WEB:
        processes.add(Process(name, arguments, environment, health="/healthz"))
    proxy: subprocess.Popen[bytes] | None = None
    try:
        processes.begin(*WEB)
        processes.wait_until_ready(list(WEB))
        file = tmp_path / "nginx.conf"
        ports = [processes.by_name[name].port for name in WEB]
        file.write_text(configuration(tmp_path, port, ports))
        proxy = subprocess.Popen([binary, "-p", str(tmp_path), "-c", str(file)])
        yield address, processes
    finally:
        if proxy is not None:
            proxy.terminate()
            proxy.wait(timeout=20)
        for name in WEB:
            processes.stop(name)


class Browser:
    """One page that is open: connects again whenever its socket ends."""

    def __init__(self, url: str, headers: dict[str, str], origin: str) -> None:
        self.url, self.headers, self.origin = url, headers, origin
        self.messages = 0
        self.refused: list[str] = []

    async def run(self) -> None:
        while True:
            try:
                async with connect(self.url, additional_headers=self.headers, origin=self.origin) as socket:
                    async for _ in socket:
                        self.messages += 1
            except InvalidStatus as refused:
                self.refused.append(str(refused.response.status_code))
            except (ConnectionClosed, InvalidHandshake, OSError, EOFError):
                pass
            await asyncio.sleep(0.2)


def sockets_at(port: int) -> int:
    """Established connections to a port of this machine, as the kernel counts them at the server."""
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    local = f"0100007F:{port:04X}"
    return sum(row.split()[1] == local and row.split()[3] == "01" for row in rows)


def cookie_of(name: str) -> str:
    from django.conf import settings
    from django.test import Client

    from controlplane.accounts.models import User

    client = Client()
    client.force_login(User.objects.get(username=name))
    return f"fuseboard={client.cookies[settings.SESSION_COOKIE_NAME].value}"


def test_sockets_of_a_killed_web_process_move_to_the_other(nginx: tuple[str, Processes]) -> None:
    address, processes = nginx
    cookie = cookie_of("vera")
    asyncio.run(_killed(address, processes, {"Cookie": cookie}))


async def _killed(address: str, processes: Processes, headers: dict[str, str]) -> None:
    url = f"{re.sub('^http', 'ws', address)}/ws/live?page=overview"
    browsers = [Browser(url, headers, address) for _ in range(CLIENTS)]
    tasks = [asyncio.create_task(browser.run()) for browser in browsers]
    one, other = (processes.by_name[name] for name in WEB)
    try:
        await until(lambda: all(browser.messages for browser in browsers), "every socket has its page")
        assert min(sockets_at(one.port), sockets_at(other.port)) >= CLIENTS // 4
        for browser in browsers:
            browser.messages = 0
            browser.refused.clear()
        assert one.popen is not None
        one.popen.kill()
        await asyncio.to_thread(one.popen.wait)
        await until(lambda: all(browser.messages for browser in browsers), "every socket is back")
        assert not sockets_at(one.port)
        assert sum(len(browser.refused) for browser in browsers) == 0
        # The process returns, and new sockets go to it again.
        await asyncio.to_thread(processes.begin, one.name)
        await asyncio.to_thread(processes.wait_until_ready, [one.name])
        late = Browser(url, headers, address)
        browsers.append(late)
        tasks.append(asyncio.create_task(late.run()))
        await until(lambda: late.messages > 0 and sockets_at(one.port) > 0, "a new socket at the new process")
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def until(look: Any, what: str) -> None:
    await asyncio.to_thread(wait_until, look, what, within_s=60)
