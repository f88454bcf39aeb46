"""The whole product on one machine with chaos between its parts, broken row by row."""

import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import redis

from controlplane.embedded.postgres import Postgres
from controlplane.embedded.valkey import Valkey
from controlplane.installation import FOLDER as PROJECT
from tests import migrated
from tests.agents.windows import worst_window
from tests.faults.chaos import Network, Proxy, network
from tests.faults.ends import Pod, Talker
from tests.faults.world import EVERYTHING, WINDOW_US
from tests.waiting import NotInTime, wait_until
from tools.demo.processes import Process, Processes
from tools.demo.scenario import BEAT_MS

CONTROL_PLANE = ("gateway", "worker", "beat")
#: Calls per second of each pod, unless a row sets another rate.
CALM = 24.0


class Broken(AssertionError):
    """A promise was broken; the message says what happened."""


class Skip(Exception):
    """This machine cannot run the row."""


class Field:
    """Servers, control plane and pods. ``short`` is for ``make test``."""

    def __init__(self, folder: Path, net: Network, *, short: bool) -> None:
        self.folder = folder
        self.short = short
        #: Whether another row can run here.
        self.healthy = True
        self.network = net
        self.valkey = self._valkey("limits")
        self.pods: list[Pod] = []
        self.others: list[Pod] = []
        self.stack = ExitStack()
        self._spare = 0

    # Start and stop

    def open(self) -> None:
        self.broker = self._valkey("broker")
        migrated.copy_into(self.folder / "postgres")
        self.postgres = Postgres(self.folder / "postgres", durable=False)
        # It is killed, and must not lose what it has answered; power loss is not tested.
        self.postgres.settings = self.postgres.settings | {"synchronous_commit": "on"}
        self.postgres.start()
        self.stack.callback(self.postgres.stop)
        #: Between the control plane and Redis.
        self.desk = self.network.proxy(self.address(self.valkey))
        self.variables = _without_ours() | {
            "DATABASE_URL": self.postgres.url,
            "FUSEBOARD_REDIS_URL": through(self.desk, self.valkey),
            "FUSEBOARD_BROKER_URL": self.broker.url,
            "FUSEBOARD_DATA_DIR": str(self.folder),
            "FUSEBOARD_SECRET_KEY": "faults-are-signed-with-this-and-nothing-else-is-either",
            "FUSEBOARD_PLAIN_HTTP": "1",
            "FUSEBOARD_BEAT_MS": str(BEAT_MS),
            "FUSEBOARD_LOG_LEVEL": "WARNING",
            "FUSEBOARD_METRICS_TOKEN": "read-only-figures",
            # The worker loads the functions; pods of most rows may do everything, and load their scripts.
            "FUSEBOARD_ACL_PROFILE": "hardened",
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        }
        self.director = self.new_director()
        self.token = self.director.greeting["token"]
        #: The browser session of the user ``admin``.
        self.password = self.director.greeting["password"]
        self.processes = Processes(self.folder / "logs")
        self.stack.callback(lambda: self.processes.stop(*self.processes.by_name, grace_s=3.0))
        celery = ["-m", "celery", "-A", "controlplane"]
        worker = [
            *celery,
            "worker",
            "--pool=threads",
            "--concurrency=2",
            "--without-gossip",
            "--without-mingle",
        ]
        served = ["--port", "{port}", "--exactly"]
        for actor in (
            Process("gateway", ["manage.py", "gateway", *served], self.variables, health="/healthz"),
            Process("web", ["manage.py", "web", *served], self.variables, health="/healthz"),
            Process("worker", worker, self.variables),
            Process("beat", [*celery, "beat", "-s", str(self.folder / "schedule")], self.variables),
        ):
            self.processes.add(actor)
        self.processes.begin(*CONTROL_PLANE)
        self.processes.wait_until_ready(CONTROL_PLANE)
        gateway = self.processes.by_name["gateway"]
        self.gateway_address = ("127.0.0.1", gateway.port)
        web = self.processes.by_name["web"]
        web.environment = {**self.variables, "FUSEBOARD_GATEWAY_URL": gateway.url}
        self.pods += [self.pod(f"pod-{number}", wait=False) for number in (1, 2, 3)]
        self.settle()
        self.baseline = {pod.name: pod.state() for pod in self.pods}

    def new_director(self, **more: str) -> Talker:
        """Another process that edits; the first one also fills the database."""
        command = [
            sys.executable,
            "-m",
            "tests.faults.director",
            *(["again"] if hasattr(self, "token") else []),
        ]
        director = Talker(command, self.variables | more, self.folder / "director.log")
        self.stack.callback(director.stop)
        return director

    def _valkey(self, name: str) -> Valkey:
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        server = Valkey(folder)
        server.start()
        return server

    def spare_valkey(self) -> Valkey:
        """Another Redis, with the password of the first, so that pods can be redirected to it."""
        self._spare += 1
        folder = self.folder / f"spare-{self._spare}"
        folder.mkdir(mode=0o700)
        server = Valkey(folder)
        server.password = self.valkey.password
        server.start()
        self.stack.callback(server.stop)
        return server

    def pod(self, name: str, **options: Any) -> Pod:
        """Start a pod with its own proxies; options are those of ``Pod``."""
        to_redis, to_gateway = self.proxies()
        environment = self.environment_of(name, to_redis, to_gateway) | options.pop("environment", {})
        return Pod(name, self.folder, environment, to_redis, to_gateway, **options)

    def proxies(self) -> tuple[Proxy, Proxy]:
        """Between one process with an agent and Redis, and between it and the gateway."""
        return self.network.proxy(self.address(self.valkey)), self.network.proxy(self.gateway_address)

    def environment_of(self, name: str, to_redis: Proxy, to_gateway: Proxy) -> dict[str, str]:
        """The variables of a process whose agent has this name."""
        return _without_ours() | {
            "FUSEBOARD_REDIS_URL": through(to_redis, self.valkey),
            "FUSEBOARD_URL": f"http://127.0.0.1:{to_gateway.port}",
            "FUSEBOARD_TOKEN": self.token,
            "FUSEBOARD_SERVICE": "faults",
            "FUSEBOARD_SERVER": name,
            "FUSEBOARD_STATE_DIR": str(self.folder / "state" / name),
        }

    def another_pod(self, name: str, **options: Any) -> Pod:
        """A pod of one row, stopped when that row ends."""
        pod = self.pod(name, **options)
        self.others.append(pod)
        return pod

    def lead(self, proxy: Proxy, server: Valkey) -> None:
        """Connect everything behind ``proxy`` to that server only."""
        if proxy.upstream != self.address(server):
            proxy.upstream = self.address(server)
            proxy.reset_all()

    @staticmethod
    def address(server: Valkey) -> tuple[str, int]:
        return ("127.0.0.1", server.port)

    def redis(self, server: Valkey | None = None) -> redis.Redis:
        client = redis.Redis.from_url((server or self.valkey).url, decode_responses=True)
        self.stack.callback(client.close)
        return client

    # Actions of rows

    def load(self, mix: list[str], rate: float, **more: float) -> None:
        """Let every pod call the items of ``mix`` in turn, ``rate`` times per second."""
        for pod in [*self.pods, *self.others]:
            if pod.alive:
                pod.load(mix, rate, **more)

    def begin_anew(self) -> int:
        """Reset what callers saw; return the start of the histories, in microseconds."""
        for pod in self.pods:
            pod.figures(begin_anew=True)
        return time.time_ns() // 1000

    def worst(self, target: str, since_us: int, *, sources: str = "sl", until_us: int | None = None) -> int:
        """The largest number admitted in any window, over all pods."""
        times = [
            at
            for pod in [*self.pods, *self.others]
            for at, what, source in pod.history()
            if what == target and source in sources and at >= since_us and (until_us is None or at < until_us)
        ]
        return worst_window(times, WINDOW_US)

    def edit(self, name: str, /, **arguments: Any) -> int:
        revision: int = self.director.ask({"edit": name, "with": arguments})
        return revision

    def freeze(self, server: Valkey | None = None) -> None:
        self._signal(server, signal.SIGSTOP)

    def thaw(self, server: Valkey | None = None) -> None:
        self._signal(server, signal.SIGCONT)

    def kill(self, server: Valkey | None = None) -> None:
        self._signal(server, signal.SIGKILL)
        process = (server or self.valkey).process
        assert process is not None
        process.wait()

    def _signal(self, server: Valkey | None, number: signal.Signals) -> None:
        process = (server or self.valkey).process
        assert process is not None
        process.send_signal(number)

    def postgres_kill(self) -> None:
        """``kill -9``; its child processes end too."""
        process = self.postgres.process
        assert process is not None
        process.kill()
        process.wait()

    def postgres_up(self) -> None:
        """Start it if it does not run; its clients get new connections."""
        process = self.postgres.process
        if process is not None and process.poll() is not None:
            self.postgres.start()
            self.director.stop()
            self.director = self.new_director()

    def until(self, what: str, holds: Callable[[], object], within_s: float = 20.0) -> float:
        """Poll until ``holds`` is true; return the seconds it took. Raises ``Broken``."""
        began = time.monotonic()
        try:
            wait_until(holds, what, within_s=within_s, every_s=0.03)
        except NotInTime as late:
            raise Broken(str(late)) from None
        return time.monotonic() - began

    def modes(self, *pods: Pod) -> list[str]:
        return [pod.state()["mode"] for pod in pods or self.pods]

    def all_in(self, mode: str, *pods: Pod, within_s: float = 20.0) -> float:
        return self.until(f"pods in mode {mode}", lambda: set(self.modes(*pods)) == {mode}, within_s)

    # Healing

    def heal(self) -> None:
        """Remove every fault, whatever a row did."""
        self.network.heal()
        while self.others:
            self.others.pop().stop()
        for pod in self.pods:
            pod.go_on()
            if not pod.alive:
                pod.restart()
            pod.send_command({"do": "fail", "dependencies": []})
        for proxy in [self.desk, *(pod.to_redis for pod in self.pods)]:
            self.lead(proxy, self.valkey)
        process = self.valkey.process
        if process is None or process.poll() is not None:
            self.valkey.start()
        else:
            self.thaw()
        self.postgres_up()
        fallen = [actor.name for actor in self.processes.ended() if actor.name in CONTROL_PLANE]
        self.processes.begin(*fallen)
        self.processes.wait_until_ready(fallen)

    def settle(self, within_s: float = 60.0) -> None:
        """Wait until everything has converged. Raises ``Broken`` with what has not."""
        self.load(EVERYTHING, CALM)
        try:
            wait_until(
                self._unsettled, "healing", within_s=within_s, every_s=0.1, accept=lambda wrong: not wrong
            )
        except NotInTime as late:
            raise Broken(str(late)) from None
        finally:
            self.load([], 0)

    def _unsettled(self) -> str:
        head = self.director.ask({"do": "head"})
        stored = self.redis_head()
        if stored != head:
            return f"Redis has {stored}, Postgres {head}"
        for pod in self.pods:
            state = pod.state()
            if state["mode"] != "shared":
                return f"{pod.name} is {state['mode']}: {state['cause']}"
            if state["head"][:2] != head:
                return f"{pod.name} has {state['head']}, Postgres {head}; {state['status']} {state['error']}"
            stuck = {name: one for name, one in state["breakers"].items() if one != "closed"}
            if stuck:
                return f"{pod.name} sees {stuck}"
            if state["defects"]:
                return f"{pod.name} had {state['defects']} defects"
        if silent := {pod.name for pod in self.pods} - self.heard():
            return f"the gateway has not heard {silent} of late"
        hashes = {pod.state()["head"][2] for pod in self.pods}
        return "" if len(hashes) == 1 else f"one revision, different content: {hashes}"

    def heard(self) -> set[str]:
        """Pods with a current heartbeat: after an outage of the control plane they return within half a
        minute.
        """
        lately = "SELECT name FROM fleet_server WHERE last_seen_at > now() - interval '5 seconds'"
        with psycopg.connect(self.postgres.url) as database:
            return {name for (name,) in database.execute(lately)}

    def redis_head(self) -> list[int]:
        with redis.Redis.from_url(self.valkey.url, decode_responses=True, socket_timeout=2) as client:
            try:
                epoch, revision = client.hmget("fb1:production:{cfg}:head", "epoch", "revision")
            except redis.RedisError:
                return []
        return [int(epoch), int(revision)] if epoch and revision else []

    def leaks(self) -> str:
        """Tasks, threads, descriptors and processes beyond the initial number."""
        found = []
        for pod in self.pods:
            before, now = self.baseline[pod.name], pod.state()
            for what, spare in (("tasks", 3), ("threads", 2), ("descriptors", 4)):
                if now[what] > before[what] + spare:
                    found.append(f"{pod.name} has {now[what]} {what}, once {before[what]}")
        dead = [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]
        found += [f"nobody waited for process {child.pid}" for child in dead if not self._is_ours(child.pid)]
        return "; ".join(found)

    def _is_ours(self, pid: int) -> bool:
        return any(
            actor.popen is not None and actor.popen.pid == pid for actor in self.processes.by_name.values()
        )


def through(proxy: Proxy, server: Valkey) -> str:
    return re.sub(r":\d+/0$", f":{proxy.port}/0", server.url)


def _without_ours() -> dict[str, str]:
    ours = ("FUSEBOARD_", "DATABASE_URL", "DJANGO_")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ours) and not name.lower().endswith("_proxy")
    } | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join([str(PROJECT), *sys.path[1:]])}


@contextmanager
def field(*, short: bool) -> Iterator[Field]:
    """A working world; everything in it is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="fuseboard-faults-"))
    # Postgres may run as another user.
    folder.chmod(0o755)
    try:
        with network() as net:
            world = Field(folder, net, short=short)
            try:
                world.open()
                yield world
            finally:
                world.network.heal()
                everybody = [*world.others, *world.pods]
                for pod in everybody:
                    pod.go_on()
                    pod.talker.hang_up()
                for pod in everybody:
                    pod.stop()
                world.stack.close()
                for server in (world.valkey, getattr(world, "broker", None)):
                    if server is not None and server.process is not None and server.process.poll() is None:
                        server.process.send_signal(signal.SIGCONT)
                        server.stop()
    finally:
        if not os.environ.get("FAULTS_KEEP"):
            shutil.rmtree(folder, ignore_errors=True)
