"""README.md and docs/integration.md, followed literally in an empty environment.

The commands and the files are those of the page. Only the placeholders are replaced: addresses of examples,
the token, and the port.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.embedded.children import free_port
from fuseboard.contract.words import Mode
from tests.contract.compat.release import ROOT
from tests.contract.compat.served import ControlPlane
from tests.waiting import wait_until

#: An installation takes 15 s, on a busy machine several times as long.
pytestmark = pytest.mark.timeout(600)

README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs/integration.md").read_text()


@cache
def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def block(page: str, language: str, start: str) -> str:
    """The only block that begins with ``start``."""
    (found,) = (text for text in blocks(page, language) if text.startswith(start))
    return found


DJANGO = """
SECRET_KEY = "of a test"
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
"""
VIEWS = """
from django.http import HttpResponse
from django.urls import path


async def charge(request):
    return HttpResponse("charged")


async def order(request):
    return await asynchronous_view(request, charge)


def quote(request):
    return view(request, lambda request: HttpResponse("quoted"))


urlpatterns = [path("order", order), path("quote", quote)]
"""


class Reader:
    """A person with a checkout, an empty environment, and an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.project = folder / "shop"
        self.project.mkdir(parents=True)
        self.home.mkdir()
        venv = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        constraints = folder / "constraints.txt"
        # Versions that the other tests use, so that a release of today does not change the result.
        pinned = re.findall(r"^([\w.-]+==[\w.]+)", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)
        constraints.write_text("\n".join(pinned))
        self.environment = {
            "PATH": f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "NO_PROXY": "127.0.0.1",
        }
        #: What pip needs here to find its index: settings of this machine, which are none of the page's.
        here = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._here = here | {"PIP_CONSTRAINT": str(constraints), "PATH": self.environment["PATH"]}
        # A false value chooses --no-compile. An application then compiles what it imports, and no more.
        self._here["PIP_NO_COMPILE"] = "0"
        probe = ["pip", "download", "--quiet", "--no-deps", "--retries", "1", "--timeout", "30", "msgspec"]
        found = subprocess.run(
            [venv / "bin" / probe[0], *probe[1:]],
            cwd=folder,
            env=self._here,
            capture_output=True,
            check=False,
        )
        if found.returncode != 0:
            pytest.skip("needs a package index: pip cannot download msgspec")

    def install(self, command: str) -> None:
        """Run a command of the page that installs something, in the checkout."""
        self.run(command, cwd=ROOT, environment=self._here)

    def run(
        self, script: str, *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=cwd or self.project,
            env=environment or self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def export(self, script: str) -> None:
        """Run the ``export`` lines of a block in this reader's shell from now on."""
        names = re.findall(r"([A-Z_]+)=", script)
        said = self.run(f"{script}\nprintf '%s\\n' " + " ".join(f'"${name}"' for name in names))
        self.environment |= dict(zip(names, said.splitlines(), strict=True))

    @contextmanager
    def serving(self, command: str, port: int) -> Iterator[httpx.Client]:
        """The application of the page, started by its command."""
        log = self.project / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec env {command}"],
                cwd=self.project,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
                wait_until(partial(_answers, process, client, log), "the application", within_s=90)
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _answers(process: subprocess.Popen[bytes], client: httpx.Client, log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-3000:]
    try:
        client.get("/", headers={"x-tenant": "first"})
    except httpx.TransportError:
        return False
    return True


@pytest.fixture(scope="module")
def reader_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reader]:
    """A reader who has run an installation command in the checkout. Pages with one command share it."""

    @cache
    def reader_in(command: str) -> Reader:
        reader = Reader(tmp_path_factory.mktemp("reader"))
        reader.install(command)
        return reader

    return reader_in


@pytest.fixture
def vendor() -> Iterator[str]:
    """Answers every request with 200."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            """Prints nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def with_real(plane: ControlPlane, vendor: str, redis_url: str) -> Callable[[str, int], str]:
    """A page with its placeholders replaced; the port of its application is given."""

    def with_real(page: str, port: int) -> str:
        places = {
            "https://fuseboard-gateway.example.com": plane.gateway,
            "https://fuseboard.example.com": plane.web,
            "https://payments.example.com": vendor,
            "redis://limits:6379": redis_url,
            "fb_...": plane.agent_token,
            "8080": str(port),
        }
        for place, real in places.items():
            page = page.replace(place, real)
        return page

    return with_real


def need_curl() -> None:
    if shutil.which("curl") is None:
        if os.environ.get("CI"):
            pytest.fail("needs curl")
        pytest.skip("needs curl: install it with `apt-get install curl`")


def split_install(script: str) -> tuple[str, str]:
    """The installation command of a block, without its comment, and the rest."""
    line, rest = script.split("\n", 1)
    install = line.partition(" #")[0].rstrip()
    assert install.startswith("pip install ")
    return install, rest


def test_the_readme_is_right(
    reader_in: Callable[[str], Reader],
    with_real: Callable[[str, int], str],
    plane: ControlPlane,
    tmp_path: Path,
) -> None:
    """The quick start, then the pipeline: a reader of the one has not read the other."""
    need_curl()
    port = free_port()
    page = with_real(README, port)
    _, script = block(page, "sh", "python3 -m venv .venv-shop").split("\n", 1)
    install, export = split_install(script)
    reader = reader_in(install)
    reader.export(export)
    (reader.project / "shop.py").write_text(block(page, "python", "import fuseboard"))
    serve, ask = block(page, "sh", "uvicorn").splitlines()
    with reader.serving(serve, port):
        assert reader.run(f"{ask} --silent --show-error") == '{"charged":true}'
        wait_until(lambda: '"shop"' in plane.call("GET", "production/servers").text, "the pod on its page")

    install, rest = split_install(block(page, "sh", "pip install .\n"))
    reader = reader_in(install)
    create_token = block(page, "sh", "python manage.py create_api_token").strip()
    on_server = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DATABASE_URL": plane.database_url,
        "FUSEBOARD_DATA_DIR": str(tmp_path),
    }
    made = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", create_token.removesuffix("> token")],
        cwd=ROOT,
        env=os.environ | on_server,
        capture_output=True,
        text=True,
        check=True,
    )
    (reader.project / "token").write_text(made.stdout)
    # The checkout, in which the page runs the commands, stays as it is.
    shutil.copytree(ROOT / "docs/examples", reader.project / "docs/examples")
    said = reader.run(rest)
    assert "acme-retail" in said
    assert "Applied as revision" in said
    assert "Nothing would change" in said


def test_the_guide_is_right(reader_in: Callable[[str], Reader], with_real: Callable[[str, int], str]) -> None:
    """First the part for five minutes, then all of its blocks in one file, then the section on Django."""
    need_curl()
    port = free_port()
    page = with_real(GUIDE, port)
    install, export = split_install(block(page, "sh", 'pip install ".['))
    reader = reader_in(install)
    reader.export(export)
    shop, serve = reader.project / "shop.py", block(page, "sh", "PAYMENTS_URL=").strip()
    shop.write_text(blocks(page, "python")[0])
    with reader.serving(serve, port) as client:
        ask = block(page, "sh", "curl").strip()
        assert reader.run(f"{ask} --silent --show-error") == '{"charged":true}'
        assert client.get("/healthz").json()["mode"] in set(Mode)
        (explain,) = (script for script in blocks(page, "sh") if "--tenant acme" in script)
        for command in explain.splitlines():
            assert "allowed" in reader.run(command)
        # Its exit code depends on the Redis of the tests, which has no password.
        assert "gateway" in reader.run("if fuseboard doctor; then :; else [ $? = 1 ]; fi")

    extras = re.findall(r"\(`(pip install [^`]*)`\)", page)
    assert len(extras) == 3
    for command in extras:
        reader.install(command)
    shop.write_text("\n\n".join(blocks(page, "python")))
    with reader.serving(serve, port) as client:
        assert client.post("/orders", headers={"x-tenant": "acme"}).json() == {"charged": True}
        report = client.get("/reports/2026", headers={"x-tenant": "acme", "x-key": "k"})
        assert report.json() == {"year": 2026}

    package = reader.project / "site" / "shop"
    package.mkdir(parents=True)
    (package / "settings.py").write_text(DJANGO + block(page, "python", "MIDDLEWARE"))
    (package / "limits.py").write_text("def tenant_of(request):\n    return request.headers['x-tenant']\n")
    (package / "urls.py").write_text(block(page, "python", "from fuseboard.integrations.django") + VIEWS)
    reader.environment |= {"DJANGO_SETTINGS_MODULE": "shop.settings"}
    # In an asynchronous server: ``agent().call`` in an asynchronous view was a 500.
    command = f"uvicorn --app-dir site django.core.asgi:get_asgi_application --factory --port {port}"
    with reader.serving(f"{command} --lifespan off", port) as client:
        for address, said in (("/order", "charged"), ("/quote", "quoted")):
            answer = client.get(address, headers={"x-tenant": "acme"})
            assert (answer.status_code, answer.text) == (200, said)
            assert "RateLimit" in answer.headers
