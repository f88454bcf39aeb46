"""The examples in other languages, with a sidecar, a vendor that answers 429, and without a sidecar."""

import asyncio
import os
import shutil
import subprocess
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fuseboard.reporting.token import TokenSource
from fuseboard.sidecar.app import Options
from tests.sidecar.conftest import Beside
from tests.sidecar.test_sidecar_calls import ended_as, policy
from tests.waiting import PATIENCE_S, eventually

FOLDER = Path(__file__).resolve().parents[2] / "docs/examples/sidecar"
Command = tuple[str, ...]


def found(program: str) -> str:
    """The path of a toolchain. Skips the test without it."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed: its example of the sidecar was not run")
    return path


@pytest.fixture(scope="module")
def go_example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("go") / "guard"
    subprocess.run([found("go"), "build", "-o", str(binary), str(FOLDER / "guard.go")], check=True)
    return binary


@pytest.fixture(scope="module")
def java_example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its classes. ``java Guard.java`` compiles at each start."""
    classes = tmp_path_factory.mktemp("java")
    subprocess.run([found("javac"), "-d", str(classes), str(FOLDER / "Guard.java")], check=True)
    return classes


@pytest.fixture(params=["go", "node", "java"])
def command(request: pytest.FixtureRequest) -> Command:
    if request.param == "go":
        return (str(request.getfixturevalue("go_example")),)
    if request.param == "node":
        return (found("node"), str(FOLDER / "guard.mjs"))
    classes = request.getfixturevalue("java_example")
    return (found("java"), "-XX:TieredStopAtLevel=1", "-cp", str(classes), "Guard")


@asynccontextmanager
async def vendor() -> AsyncIterator[str]:
    """Answers ``/limited`` with 429, and every other path with 200."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        limited = b" /limited " in head.partition(b"\r\n")[0]
        status = b"429 Too Many Requests\r\nRetry-After: 30" if limited else b"200 OK"
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def shown(command: Command, sidecar_url: str, *urls: str) -> list[str]:
    """The lines that the program prints: the status of each answer, or why there is none."""
    variables = {
        "SIDECAR_URL": sidecar_url,
        "SIDECAR_TOKEN": "secret",
        "SIDECAR_TIMEOUT_MS": str(int(PATIENCE_S * 1000)),
        "NO_PROXY": "127.0.0.1",
    }
    process = await asyncio.create_subprocess_exec(
        *command, "payments", *urls, stdout=PIPE, stderr=PIPE, env=os.environ | variables
    )
    written, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return written.decode().split("\n")[:-1]


async def test_an_example_is_guarded_follows_a_refusal_and_goes_on_without_its_sidecar(
    beside: Beside, command: Command
) -> None:
    options = Options(listen=("127.0.0.1", 0), token=TokenSource("secret"))
    async with vendor() as url:
        async with beside(policy(), options) as client:
            client.http.headers["authorization"] = "Bearer secret"
            sidecar_url = str(client.http.base_url).rstrip("/")
            assert await shown(command, sidecar_url, f"{url}/", f"{url}/limited") == ["200", "429"]
            await ended_as(client, {"ok": 1, "neutral": 1})
            await eventually(client.call, accept=lambda call: call.get("reason") == "cooling_down")
            assert await shown(command, sidecar_url, f"{url}/") == ["refused cooling_down"]
        assert await shown(command, sidecar_url, f"{url}/") == ["200"]


@pytest.mark.parametrize(
    ("name", "main"),
    [
        ("guard.go", "\nfunc main()"),
        ("guard.mjs", "\nconst [dependency"),
        ("Guard.java", "public static void main"),
    ],
)
def test_the_part_of_an_example_that_is_copied_is_short(name: str, main: str) -> None:
    copied, _, program = (FOLDER / name).read_text().partition(main)
    assert program
    lines = [line.strip() for line in copied.splitlines()]
    code = [line for line in lines if line and not line.startswith(("//", "import", '"', "package"))]
    assert 25 <= len(code) <= 48
