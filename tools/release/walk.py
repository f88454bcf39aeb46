"""A stranger's walk: what docs/deployment.md says about wheels, followed in empty environments.

The stranger has the files of a release, a Python, and nothing else: no checkout and no variable of ours.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

from tools.release.sources import ROOT

PAGE = ROOT / "docs/deployment.md"
SECTION = "## Install from wheels"
PASSWORD = "a stranger's first password"  # noqa: S105 - of a person who exists for a minute
#: A start, or an answer, on a machine that does much else.
PATIENCE_S = 240.0
#: Two requests in an hour for each tenant of this tier.
QUOTAS = """
tiers:
  free:
    quotas:
      orders: {limit: 2, window_s: 3600, burst: 2}
tenants:
  acme: {tier: free}
"""
REQUESTS = """
import asyncio
import fuseboard

async def main():
    async with fuseboard.from_env() as agent:
        for _ in range(600):
            decision = await agent.admit_request("acme")
            limits = [limit.name for limit in decision.limits]
            print(decision.allowed, decision.mode, decision.revision, *limits)
            if not decision.allowed:
                return
            await asyncio.sleep(0.1)

asyncio.run(main())
"""


class Lost(Exception):
    """The stranger cannot go on; the message says where."""


class Stranger:
    """A person with an empty home, one Python, and the folder ``dist``."""

    def __init__(self, folder: Path, python: Path, dist: Path) -> None:
        self.folder = folder
        for name in ("home", "bin", "server", "pod"):
            (folder / name).mkdir(parents=True)
        (folder / "bin" / "python3").symlink_to(python)
        for machine in ("server", "pod"):
            shutil.copytree(dist, folder / machine / "dist")
        self._pinned = folder / "constraints.txt"
        pins = re.findall(r"^([\w.-]+==[\w.]+)", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)
        self._pinned.write_text("\n".join(pins))

    def run(self, machine: str, script: str, **variables: str) -> str:
        """What a script prints on a machine: ``server`` or ``pod``."""
        done = subprocess.run(  # noqa: S603 - the page's own commands
            ["/bin/bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder / machine,
            env=self._environment(machine) | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Lost(f"on the {machine}: {script.strip()}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def install(self, machine: str, script: str) -> str:
        """Run a script that installs something: pip needs the settings of this machine to find its index."""
        here = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "FUSEBOARD", "DJANGO", "VIRTUAL_ENV"))
        }
        # Versions that the tests use, so that a release of today does not change the result.
        ours = {"PATH": self._environment(machine)["PATH"], "PIP_CONSTRAINT": str(self._pinned)}
        return self.run(machine, script, **here | ours)

    @contextmanager
    def running(self, name: str, command: str) -> Iterator[None]:
        """A process of the server, while the block runs."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as to:
            process = subprocess.Popen(  # noqa: S603 - the page's own command
                ["/bin/bash", "-c", f". venv/bin/activate && exec {command}"],
                cwd=self.folder / "server",
                env=self._environment("server"),
                stdout=to,
                stderr=to,
            )
        try:
            yield
            if process.poll() is not None:
                raise Lost(f"{name} ended: {log.read_text()[-3000:]}")
        except Lost as problem:
            raise Lost(f"{problem}\n{name} says:\n{log.read_text()[-2000:]}") from None
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Lost(f"{name} does not end at SIGTERM: {log.read_text()[-2000:]}") from None

    def _environment(self, machine: str) -> dict[str, str]:
        return {
            "HOME": str(self.folder / "home"),
            "PATH": f"{self.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "NO_PROXY": "127.0.0.1",
            "LANG": "C.UTF-8",
        }


class Browser:
    """Pages and cookies of one person."""

    def __init__(self, base: str) -> None:
        self.base = base
        self._cookies = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self._cookies), ProxyHandler({}))

    def get(self, path: str) -> str:
        with self._opener.open(urljoin(self.base, path), timeout=60) as answer:
            return str(answer.read().decode(errors="replace"))

    def post(self, path: str, **fields: str) -> str:
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', self.get(path))
        if token is None:
            raise Lost(f"{path} has no form")
        data = urlencode(fields | {"csrfmiddlewaretoken": token[1]}).encode()
        with self._opener.open(urljoin(self.base, path), data, timeout=60) as answer:
            return str(answer.read().decode(errors="replace"))


def walk(folder: Path, python: Path, dist: Path, say: Callable[[str], None]) -> Stranger:
    """Follow the page with one Python. Raises ``Lost``. The environments stay, for a look into them."""
    install, start, pod = blocks()
    install, last = install.rstrip().rsplit("\n", 1)
    stranger = Stranger(folder, python, dist)
    words = install.split("fuseboard-server migrate", 1)
    stranger.install("server", words[0])
    activate = ". venv/bin/activate\n"
    version = stranger.run("server", f"{activate}fuseboard-server --version && fuseboard --version")
    _expect("(commit " in version and version.count("(commit") == 2, f"two versions with a commit: {version}")
    say(f"installed {' and '.join(version.split(chr(10))[:2])}")
    stranger.run("server", f"{activate}fuseboard-server check\nfuseboard-server migrate{words[1]}")
    link = stranger.run("server", f"{activate}{last.partition('#')[0]}")
    say("check, migrate and create_environment pass with the embedded stores")
    token = stranger.run("server", f"{activate}fuseboard-server create_agent_token shop").strip()
    api = stranger.run("server", f"{activate}fuseboard-server create_api_token walk --role admin")
    ports = dict(zip(("web", "gateway"), _free_ports(2), strict=True))
    commands = [line.removeprefix("fuseboard-server ") for line in start.split("\n") if line]
    with _all(stranger, [_with_port(command, ports) for command in commands]):
        browser = Browser(f"http://127.0.0.1:{ports['web']}")
        _await(lambda: bool(browser.get("/healthz")), "web answers")
        seen = _look_around(browser, urlsplit(link.strip()).path)
        say(f"logged in; the overview has its {seen} styles and scripts, and a runbook opens")
        said = "Done:</b> a gateway and a worker run"
        _await(lambda: said in browser.get("/"), "a gateway and a worker run")
        exports = _exports(browser.get("/")).replace("fb_...", token)
        stranger.install("pod", pod)
        _first_calls(stranger, browser, activate + exports, api.strip(), say)
    return stranger


def blocks() -> list[str]:
    """The commands of the section, in the order of the page."""
    section = PAGE.read_text().split(f"{SECTION}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def _look_around(browser: Browser, welcome: str) -> int:
    """Set the password with the link, log in, and open a page with all that it loads."""
    browser.post(welcome, username="admin", password=PASSWORD, again=PASSWORD)
    page = browser.get("/")
    if "h-fp" not in page:
        page = browser.post("/login", login="admin", username="admin", password=PASSWORD)
        page = browser.get("/")
    _expect("First steps" in page, "the overview with its first steps")
    files = sorted(set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page)))
    _expect(any(name.endswith(".css") for name in files), "a page with styles")
    for name in files:
        _expect(len(browser.get(name)) > 0, f"a file {name}")
    _expect("Resolution" in browser.get("/runbooks/breaker-open"), "a runbook")
    return len(files)


def _exports(page: str) -> str:
    """What the overview tells an admin to set in the environment of a pod."""
    found = re.search(r'<code id="first-variables">(.*?)</code>', page, re.DOTALL)
    if found is None:
        raise Lost("the overview does not say what a pod needs")
    return html.unescape(found[1]) + "\n"


def let_through(said: str, revision: str) -> int:
    """The requests that the limit of ``QUOTAS`` has counted.

    Until a pod has this revision, nothing limits it. For a moment it can also decide alone. It lets a request
    pass uncounted when Redis answers too late, and counts other limits until it knows the tenant.
    """
    return len(re.findall(rf"^True shared {revision}(?: \S+)* orders(?: \S+)*$", said, re.MULTILINE))


def _first_calls(
    stranger: Stranger, browser: Browser, environment: str, api_token: str, say: Callable[[str], None]
) -> None:
    """A guarded call, and requests up to a limit, by a pod with nothing but the agent."""
    names = json.loads(stranger.run("pod", ". venv/bin/activate\npip list --format json"))
    others = {one["name"] for one in names} - {"pip", "setuptools"}
    _expect(others == {"fuseboard", "hiredis", "msgspec"}, f"three packages in the pod, not {others}")
    found = re.search(r'<code id="first-call">(.*?)</code>', browser.get("/"), re.DOTALL)
    program = html.unescape(found[1]) if found else ""
    pod = stranger.folder / "pod"
    (pod / "first.py").write_text(program.replace("range(600)", "range(3)").replace("sleep(1)", "sleep(0)"))
    said = stranger.run("pod", f"{environment}python first.py")
    _expect(said.count("charged") == 3, f"three guarded calls, not {said!r}")
    (pod / "quotas.yaml").write_text(QUOTAS)
    (pod / "token").write_text(api_token)
    api = f"export FUSEBOARD_API_URL={browser.base} FUSEBOARD_API_TOKEN_FILE=token\n"
    said = stranger.run("pod", f'{environment}{api}fuseboard ctl apply quotas.yaml --reason "A first limit"')
    revision = re.search(r"Applied as revision (\d+)", said)
    _expect(revision is not None, f"a revision, not {said!r}")
    (pod / "requests.py").write_text(REQUESTS)
    said = stranger.run("pod", f"{environment}python requests.py")
    allowed = let_through(said, revision[1]) if revision else 0
    _expect(allowed <= 2 and "False" in said, f"at most two requests and a refusal, not {said!r}")
    pods = stranger.run("pod", f"{environment}{api}fuseboard ctl pods")
    say("a pod with the agent alone made three guarded calls; its limit of 2 refused the third request")
    _expect(" shared " in pods, f"a pod that counted in Redis, not {pods!r}")


@contextmanager
def _all(stranger: Stranger, commands: list[str]) -> Iterator[None]:
    if not commands:
        yield
        return
    with (
        stranger.running(commands[0].split()[0], f"fuseboard-server {commands[0]}"),
        _all(stranger, commands[1:]),
    ):
        yield


def _with_port(command: str, ports: dict[str, int]) -> str:
    """Others may use the ports of the page on this machine."""
    return f"{command} --port {ports[command]} --exactly" if command in ports else command


def _free_ports(count: int) -> list[int]:
    import socket

    listeners = [socket.socket() for _ in range(count)]
    try:
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()


def _await(happens: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    problem = ""
    while time.monotonic() < deadline:
        try:
            if happens():
                return
        except (URLError, OSError) as error:
            if isinstance(error, HTTPError) and error.code < 500:
                raise Lost(f"{what}: {error}") from error
            problem = f" ({error})"
        time.sleep(0.3)
    raise Lost(f"not within {PATIENCE_S:.0f} s: {what}{problem}")


def _expect(right: bool, what: str) -> None:
    if not right:
        raise Lost(f"expected {what}")


if __name__ == "__main__":
    walk(Path(sys.argv[1]).resolve(), Path(sys.argv[2]), ROOT / "dist", lambda text: print(f"  {text}"))  # noqa: T201
