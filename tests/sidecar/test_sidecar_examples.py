"""The examples in other languages, with a sidecar, a vendor that answers 429, and without a sidecar."""

import asyncio
import os
import shutil
import socket
import subprocess
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fuseboard.contract.sidecar import CallError, Report
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


@pytest.fixture(autouse=True)
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the programs know."""
    file = tmp_path / "token"
    file.write_text("secret\n")
    monkeypatch.setenv("SIDECAR_TOKEN_FILE", str(file))
    return file


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
async def vendor(meanwhile: Callable[[], object] = lambda: None) -> AsyncIterator[str]:
    """Answers ``/limited`` with 429, and others with 200, but ``/reset`` and ``/hang`` not at all.

    ``meanwhile`` happens during each call.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        meanwhile()
        if b" /reset " in head:
            writer.close()
            return
        if b" /hang " in head:
            await reader.read()
            writer.close()
            return
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
    return await ran((*command, "payments", *urls), sidecar_url)


async def ran(command: Command, sidecar_url: str, **more: str) -> list[str]:
    """The lines that a program prints, which knows the sidecar."""
    return (await written(command, sidecar_url, **more))[0]


async def written(command: Command, sidecar_url: str, **more: str) -> tuple[list[str], str]:
    """The lines that it prints, and its log."""
    variables = {
        "SIDECAR_URL": sidecar_url,
        "SIDECAR_TIMEOUT_MS": str(int(PATIENCE_S * 1000)),
        "NO_PROXY": "127.0.0.1",
    }
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, env=os.environ | variables | more
    )
    lines, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return lines.decode().split("\n")[:-1], errors.decode()


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


async def test_an_example_reads_a_token_that_was_replaced(
    beside: Beside, command: Command, token_file: Path
) -> None:
    options = Options(listen=("127.0.0.1", 0), token=TokenSource("secret", token_file))
    async with (
        vendor(lambda: token_file.write_text("replaced\n")) as url,
        beside(policy(), options) as client,
    ):
        sidecar_url = str(client.http.base_url).rstrip("/")
        assert await shown(command, sidecar_url, f"{url}/", f"{url}/") == ["200", "200"]
        await ended_as(client, {"ok": 2})


async def test_an_example_with_a_wrong_token_makes_its_calls_and_says_why_they_are_not_guarded(
    beside: Beside, command: Command
) -> None:
    options = Options(listen=("127.0.0.1", 0), token=TokenSource("another"))
    async with vendor() as url, beside(policy(), options) as client:
        sidecar_url = str(client.http.base_url).rstrip("/")
        lines, log = await written((*command, "payments", f"{url}/"), sidecar_url)
        assert lines == ["200"]
        assert log.count("urn:fuseboard:sidecar:token") == 1


async def test_an_example_with_a_malformed_address_of_its_sidecar_makes_its_calls(command: Command) -> None:
    async with vendor() as url:
        assert await shown(command, "127.0.0.1:7480", f"{url}/") == ["200"]


@pytest.mark.parametrize("name", ["guard.go", "guard.mjs", "Guard.java"])
def test_an_example_knows_the_usual_address(name: str) -> None:
    host, port = Options().listen or ("", 0)
    assert f'"http://{host}:{port}"' in (FOLDER / name).read_text()


async def test_an_example_says_how_a_call_failed(
    beside: Beside, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(listen=("127.0.0.1", 0), token=TokenSource("secret"))
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))  # nothing listens
        refused = f"http://127.0.0.1:{refusing.getsockname()[1]}/"
        async with vendor() as url, beside(policy(timeout_ms=1_000), options) as client:
            reported: list[Report] = []
            take = client.sidecar.reports.take

            def taken(reports: Iterable[Report]) -> tuple[int, tuple[str, ...]]:
                reported.extend(reports)
                return take(reports)

            monkeypatch.setattr(client.sidecar.reports, "take", taken)
            sidecar_url = str(client.http.base_url).rstrip("/")
            assert len(await shown(command, sidecar_url, f"{url}/reset", refused, f"{url}/hang")) == 3
    assert [report.error for report in reported] == [CallError.RESET, CallError.CONNECT, CallError.TIMEOUT]


async def test_a_call_that_its_caller_ended_is_no_failure(beside: Beside) -> None:
    program = f"""
        import {{ guarded }} from "{FOLDER}/guard.mjs";
        const given = new AbortController();
        const url = process.env.VENDOR_URL;
        setTimeout(() => given.abort(), 200);
        const send = () => fetch(url, {{ signal: given.signal }});
        await guarded("payments", send).catch((error) => console.log(error.name));
    """
    node = (found("node"), "--input-type=module", "--eval", program, "--")
    options = Options(listen=("127.0.0.1", 0), token=TokenSource("secret"))
    async with vendor() as url, beside(policy(), options) as client:
        sidecar_url = str(client.http.base_url).rstrip("/")
        assert await ran(node, sidecar_url, VENDOR_URL=f"{url}/hang") == ["AbortError"]
        await ended_as(client, {"neutral": 1})


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
    assert 25 <= len(code) <= 75
