"""Processes of two releases on the same stores, replaced one after another while calls and edits go on."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import psycopg
import redis

from controlplane.embedded.children import free_port
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.valkey import Valkey
from tests import migrated
from tests.contract.compat import release
from tests.contract.compat.served import ControlPlane
from tests.controlplane.alerts.stores_down import RECEIVER, Sink
from tests.controlplane.api.test_compat_releases import SETUP, Pod, pod_running
from tests.waiting import wait_until

#: A process starts within this time on a busy machine.
START_S = 120.0
#: The order of docs/upgrading.md. A rollback has the reverse.
ORDER = ("worker", "gateway", "web", "pod-1", "pod-2")
PODS = tuple(name for name in ORDER if name.startswith("pod-"))
BUSY, EDITED, QUOTA = "acme", "umbrella", "orders"
_HEAD = "fb1:production:{cfg}:head"


@dataclass(frozen=True)
class Release:
    name: str
    root: Path

    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": release.python_path(self.root, self.root / "agents")}


def last_release() -> Release:
    return Release(release.LAST.version, release.source(release.LAST.commit))


def this_release() -> Release:
    return Release("this", release.ROOT)


@dataclass
class Figures:
    """What callers, editors and people saw."""

    calls: Counter[str]
    edits: int = 0
    repeated_edits: int = 0

    def __str__(self) -> str:
        again = sum(number for what, number in self.calls.items() if what.startswith("again: "))
        return (
            f"{self.calls['allowed']} calls allowed, {self.calls['refused']} refused by the limit, {again}"
            f" decided again; {self.edits} edits, {self.repeated_edits} sent again"
        )


class Formation:
    """A control plane and two pods on stores of their own."""

    def __init__(self, folder: Path, sink: Sink, stack: ExitStack, *, setup: Release, fresh: bool) -> None:
        """``setup`` fills the database. It is migrated already, unless it is ``fresh``."""
        self.folder, self.sink, self._stack = folder, sink, stack
        for name in ("postgres", "limits", "broker", "logs"):
            (folder / name).mkdir()
        if not fresh:
            migrated.copy_into(folder / "postgres")
        self.postgres = Postgres(folder / "postgres", durable=False)
        self.limits, self.broker = Valkey(folder / "limits"), Valkey(folder / "broker")
        for store in (self.postgres, self.limits, self.broker):
            stack.callback(store.stop)
            store.start()
        self.ports = {"web": free_port(), "gateway": free_port()}
        self._variables = {
            name: value for name, value in os.environ.items() if not name.startswith("FUSEBOARD_")
        } | {
            "DATABASE_URL": self.postgres.url,
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "FUSEBOARD_REDIS_URL": self.limits.url,
            "FUSEBOARD_BROKER_URL": self.broker.url,
            "FUSEBOARD_DATA_DIR": str(folder),
            "FUSEBOARD_GATEWAY_URL": f"http://127.0.0.1:{self.ports['gateway']}",
            "FUSEBOARD_BEAT_MS": "500",
            "FUSEBOARD_LOG_LEVEL": "WARNING",
            "FUSEBOARD_WEBHOOK_NETWORKS": "127.0.0.0/8",
            "FUSEBOARD_PLAIN_HTTP": "1",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(self._end_all)
        tokens = self.manage(setup, "-c", SETUP).split()
        self.plane = ControlPlane(
            f"http://127.0.0.1:{self.ports['web']}",
            f"http://127.0.0.1:{self.ports['gateway']}",
            tokens[0],
            tokens[1],
            "",
            self.postgres.url,
        )
        stack.callback(self.plane.http.close)
        self.pods: dict[str, tuple[Pod, ExitStack]] = {}
        self.redis = stack.enter_context(redis.Redis.from_url(self.limits.url, decode_responses=True))
        self.figures = Figures(Counter())
        #: Revision -> hashes of its content in Redis.
        self.hashes: dict[tuple[str, str], set[str]] = {}
        self.limit = 0

    def manage(self, of: Release, *arguments: str) -> str:
        """The output of Python with the code of a release."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=of.root,
            env=self._variables | of.variables(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2_000:]} {done.stderr[-2_000:]}"
        return done.stdout

    def migrate(self, to: Release) -> None:
        self.manage(to, "manage.py", "migrate")
        self.add_receiver(to)

    def add_receiver(self, of: Release) -> None:
        self.manage(of, "manage.py", "shell", "-v", "0", "-c", RECEIVER.format(url=self.sink.url))

    # Processes

    def begin(self, name: str, of: Release) -> None:
        if name in PODS:
            self._begin_pod(name, of)
            return
        arguments = {
            "worker": [
                *("-m", "celery", "-A", "controlplane", "worker", "--beat", "--pool", "threads"),
                *("--concurrency", "2", "--without-gossip", "--without-mingle"),
                *("--schedule", str(self.folder / f"schedule-{of.name}")),
            ]
        }.get(name) or ["manage.py", name, "--port", str(self.ports[name]), "--exactly"]
        with (self.folder / "logs" / name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=of.root,
                env=self._variables | of.variables(),
                stdout=log,
                stderr=log,
                # Beat is a process of its own.
                start_new_session=True,
            )
        if name in self.ports:
            wait_until(lambda: self._answers(name), f"{name} of {of.name}", within_s=START_S)

    def _answers(self, name: str) -> bool:
        assert self._processes[name].poll() is None, (self.folder / "logs" / name).read_text()[-3_000:]
        try:
            return self.plane.http.get(f"http://127.0.0.1:{self.ports[name]}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def _begin_pod(self, name: str, of: Release) -> None:
        folder = self.folder / f"{name}-{of.name}"
        # After a rollback it is there, with what the pod of that release stored.
        folder.mkdir(exist_ok=True)
        stack = ExitStack()
        running = pod_running(of.root / "agents", self.plane, self.limits.url, folder, f"{name}-{of.name}")
        pod = stack.enter_context(running)
        earlier = self.pods.get(name)
        # A platform starts the new pod before it ends the old one.
        self.pods[name] = pod, stack
        if earlier:
            earlier[1].close()
        else:
            self._stack.callback(lambda: self.pods[name][1].close())

    def replace(self, name: str, by: Release) -> None:
        if name not in PODS:
            self._end(name)
        self.begin(name, by)

    @contextmanager
    def beside(self, name: str, by: Release) -> Iterator[None]:
        """Replace a process by one that starts first: both run while the block runs."""
        before = f"{name} before"
        self._processes[before] = self._processes.pop(name)
        if name in self.ports:
            self.ports[name] = free_port()
        self.begin(name, by)
        yield
        self._end(before)

    def _end_all(self) -> None:
        for name in list(self._processes):
            self._end(name)

    def _end(self, name: str) -> None:
        process = self._processes.pop(name)
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()

    # Work

    def configure(self, limit: int) -> None:
        """Give the busy tenant a limit for the whole test."""
        self.limit = limit
        # That of the tier would refuse many calls at once.
        requests = "requests: {limit: 1000000, window_s: 1, burst: 1000000}"
        rule = f"{{limit: {limit}, window_s: 86400, algorithm: sliding_window, failure_policy: fail_closed}}"
        self.plane.apply(
            "tuning: {store_deadline_us: 50000}\n"
            f"tenants:\n  {BUSY}: {{tier: pro, quotas: {{{requests}, {QUOTA}: {rule}}}}}\n"
            f"  {EDITED}: {{tier: pro, quotas: {{{QUOTA}: {rule}}}}}\n".encode()
        )

    def during(self, replacement: Callable[[], object], *, calls: int, edits: int) -> None:
        """Call and edit while something is replaced, and after it."""
        over = Event()
        with ThreadPoolExecutor(2) as pool:
            working = [pool.submit(self._call, calls, over), pool.submit(self._edit, edits, over)]
            try:
                replacement()
            finally:
                over.set()
            for one in working:
                one.result()

    def _call(self, calls: int, over: Event) -> None:
        done = 0
        while done < calls:
            # One half of the calls is for the time after the replacement.
            size = 20 if over.is_set() or done < calls // 2 else 1
            size = min(size, calls - done)
            pod, _ = self.pods[PODS[done % len(PODS)]]
            self.figures.calls.update(pod.ask("spend", f"{BUSY} {QUOTA} {size}"))
            done += size
            self._look()
            over.wait(0.1)

    def _look(self) -> None:
        epoch, revision, content = self.redis.hmget(_HEAD, "epoch", "revision", "hash")
        if epoch and revision and content:
            self.hashes.setdefault((epoch, revision), set()).add(content)

    def _edit(self, edits: int, over: Event) -> None:
        for number in range(edits):
            if number >= edits // 2:
                over.wait(START_S)
            self._edit_once(self.figures.edits + 1)
            self.figures.edits += 1
            self._look()

    def _edit_once(self, number: int) -> None:
        """Like a client: send again what got no answer, with the key of the first time."""
        path = f"/api/v1/production/tenants/{EDITED}/quotas/{QUOTA}"
        headers = {"Authorization": f"Bearer {self.plane.api_token}", "Idempotency-Key": f"edit-{number:05}"}
        body: dict[str, Any] = {
            "limit": 1_000 + number,
            "window_s": 86_400,
            "burst": 1,
            "algorithm": "sliding_window",
            "reason": f"Edit {number}, of a test",
        }

        def sent() -> bool:
            # Another web may have taken over.
            url = f"{self.plane.web}{path}"
            try:
                if "expected_version" not in body:
                    tenant = self.plane.http.get(url.rpartition("/quotas/")[0], headers=headers)
                    if tenant.status_code >= 500:
                        return False
                    body["expected_version"] = tenant.json()["version"]
                answer = self.plane.http.put(url, json=body, headers=headers)
            except httpx.TransportError:
                self.figures.repeated_edits += 1
                return False
            assert answer.status_code < 300 or answer.status_code >= 500, answer.text
            return answer.status_code < 300

        wait_until(sent, f"edit {number}", within_s=START_S)

    # Judgement

    def problems(self) -> Iterator[str]:
        """What no caller, editor or person may see."""
        calls = self.figures.calls
        if calls["allowed"] > self.limit:
            yield f"{calls['allowed'] - self.limit} calls over the limit"
        known = re.compile("allowed|refused|again: (store_unavailable|default tier)")
        failed = {what: number for what, number in calls.items() if not known.fullmatch(what)}
        if failed:
            yield f"calls failed: {failed}"
        with psycopg.connect(self.postgres.url) as connection:
            entries = connection.execute(
                "SELECT reason, epoch, revision FROM audit_entry WHERE reason LIKE 'Edit %, of a test'"
            ).fetchall()
            tenant = connection.execute(
                'SELECT q."limit" FROM policies_tenantquota q JOIN policies_tenant t ON t.id = q.tenant_id'
                " WHERE t.key = %s AND q.name = %s",
                [EDITED, QUOTA],
            ).fetchone()
        if len(entries) != self.figures.edits or len({reason for reason, *_ in entries}) != len(entries):
            yield f"{self.figures.edits} edits were confirmed, and the audit has {len(entries)}"
        if tenant != (1_000 + self.figures.edits,):
            yield f"the limit of the last edit is {1_000 + self.figures.edits}, and the database has {tenant}"
        if len({(epoch, revision) for _, epoch, revision in entries}) != len(entries):
            yield "two edits have the number of one revision"
        if two := {revision for revision, hashes in self.hashes.items() if len(hashes) > 1}:
            yield f"revisions with two contents: {sorted(two)}"
        if messages := self.sink.counts():
            yield f"people got {messages}"

    def arrives_everywhere(self) -> None:
        """The last edit is what Redis has, and what each pod decides by."""
        last = self.plane.call("GET", "production/configuration").json()["revision"]
        for name, (pod, _) in self.pods.items():
            ask = partial(pod.ask, "request", EDITED)
            wait_until(
                ask,
                f"revision {last} at {name}",
                within_s=START_S,
                accept=lambda answer: answer["revision"] == last,
            )

    def last_evaluation(self) -> datetime | None:
        with psycopg.connect(self.postgres.url) as connection:
            [(at,)] = connection.execute("SELECT max(at) FROM alerts_evaluation").fetchall()
        return at  # type: ignore[no-any-return]


@contextmanager
def formation(folder: Path, *, setup: Release, fresh: bool) -> Iterator[Formation]:
    sink = Sink()
    with ExitStack() as stack:
        stack.callback(sink.close)
        yield Formation(folder, sink, stack, setup=setup, fresh=fresh)


def start(world: Formation, of: Release, *, limit: int) -> None:
    """Every process of a release, and a limit for all calls."""
    for name in ORDER:
        world.begin(name, of)
        if name == "web":
            world.configure(limit)
    world.arrives_everywhere()


def upgrade(world: Formation, before: Release, *, calls: int, edits: int, migrate: bool) -> None:
    """Replace every process of ``before`` by one of this release, in the documented order.

    Without ``migrate``, this release has migrated the database before.
    """
    new = this_release()
    if not migrate:
        world.add_receiver(new)
    else:
        world.during(lambda: world.migrate(new), calls=calls // 6, edits=edits // 6)
        calls, edits = calls - calls // 6, edits - edits // 6
    world.manage(new, "manage.py", "begin_upgrade", "--for", "60m")
    _replace(world, [(name, new) for name in ORDER], calls=calls, edits=edits)
    world.manage(new, "manage.py", "begin_upgrade", "--end")
    last = world.last_evaluation()
    # The worker evaluates alerts again: what it found wrong would have been sent.
    wait_until(lambda: world.last_evaluation() != last, "an evaluation after the end", within_s=START_S)


def roll_back(world: Formation, to: Release, *, calls: int, edits: int) -> None:
    """The same in reverse. The database stays as this release has migrated it."""
    world.manage(this_release(), "manage.py", "begin_upgrade", "--for", "60m")
    _replace(world, [(name, to) for name in reversed(ORDER)], calls=calls, edits=edits)


def replace_at_once(world: Formation, by: Release, *, calls: int, edits: int) -> None:
    """As Helm and Kubernetes do: the whole control plane at the same time, and then the pods.

    Web and workers of both releases run beside each other. The gateway keeps its name, so it ends first.
    """

    def control_plane() -> None:
        with ThreadPoolExecutor(1) as pool, world.beside("worker", by):
            gateway = pool.submit(world.replace, "gateway", by)
            with world.beside("web", by):
                # Callers go to the new one when it is ready, and to the old one until then.
                world.plane.web = f"http://127.0.0.1:{world.ports['web']}"
                gateway.result()

    world.manage(this_release(), "manage.py", "begin_upgrade", "--for", "60m")
    world.during(control_plane, calls=calls // 3, edits=edits // 3)
    _replace(world, [(name, by) for name in PODS], calls=calls - calls // 3, edits=edits - edits // 3)


def _replace(world: Formation, stages: list[tuple[str, Release]], *, calls: int, edits: int) -> None:
    for left in range(len(stages), 0, -1):
        name, release_of = stages[-left]
        world.during(partial(world.replace, name, release_of), calls=calls // left, edits=edits // left)
        calls, edits = calls - calls // left, edits - edits // left
    world.arrives_everywhere()
