"""The demo set up: its processes, its figures, and a hand on its switches."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from controlplane.demo.load import Account
from controlplane.demo.processes import Actor, Troupe
from controlplane.demo.scenario import BEAT_MS, DEPENDENCIES, PODS, SERVICE, ZONES
from controlplane.demo.seed import Seeded

CONTROL_PLANE = ("web", "gateway", "worker", "beat")

#: What a pod must not see: it knows neither Postgres nor the queue.
_CONTROL_PLANE_ONLY = ("DATABASE_URL", "FUSEBOARD_BROKER_URL", "FUSEBOARD_DATA_DIR", "FUSEBOARD_PLAIN_HTTP")


@dataclass(frozen=True)
class Figures:
    """Accounts of the load generator, by pod."""

    pods: dict[str, Account]

    @property
    def answered(self) -> int:
        return sum(account.answered for account in self.pods.values())

    @property
    def slowest_ms(self) -> float:
        return max(account.slowest_ms for account in self.pods.values())

    @property
    def typical_ms(self) -> float:
        """The mean of all answers."""
        return sum(account.total_ms for account in self.pods.values()) / max(1, self.answered)

    def trouble(self) -> str:
        """What no caller should have seen: calls without an answer, answers other than 200 and 429."""
        found = []
        for pod, account in self.pods.items():
            bad = {status: n for status, n in account.statuses.items() if status not in ("200", "429")}
            if bad:
                found.append(f"{pod} answered {bad}")
            if account.unanswered:
                found.append(f"{pod} left {account.unanswered} calls unanswered ({account.error})")
        return "; ".join(found)


class Stage:
    """``web_port`` is a wish; another port is taken when it is in use, and any for 0."""

    def __init__(self, folder: Path, seeded: Seeded, *, per_pod: float, web_port: int = 0) -> None:
        self.folder = folder
        self.seeded = seeded
        self.troupe = Troupe(folder / "logs")
        self.client = httpx.Client(timeout=5.0, trust_env=False)
        self._per_pod = per_pod
        self._cast_control_plane(web_port)

    def open(self) -> None:
        """Start everything and wait until all of it answers. Raises ``DidNotStart``."""
        self.troupe.begin("vendor", *CONTROL_PLANE)
        self.troupe.await_answers(["vendor", "gateway"])
        for dependency in DEPENDENCIES:
            self.switch(dependency.name, failure_percent=0, latency_ms=dependency.latency_ms)
        # Cast only now: a process that lost a race for its port has another since.
        self._cast_pods()
        self.troupe.begin(*PODS)
        self.troupe.await_answers(["web", *PODS])
        self._cast_load()
        self.troupe.begin("load")
        self.troupe.await_answers(self.troupe.actors)

    def _cast_control_plane(self, web_port: int) -> None:
        celery = ["-m", "celery", "-A", "controlplane"]
        worker = [*celery, "worker", "--pool=threads", "--concurrency=2"]
        actors = (
            Actor("web", _served("manage.py", "web", "--exactly"), health="/healthz", port=web_port),
            Actor("gateway", _served("manage.py", "gateway", "--exactly"), health="/healthz"),
            Actor("worker", [*worker, "--without-gossip", "--without-mingle"]),
            Actor("beat", [*celery, "beat"]),
        )
        for actor in actors:
            # Celery says at INFO every second that nothing was to be done.
            level = "INFO" if actor.health else "WARNING"
            said = {"FUSEBOARD_BEAT_MS": str(BEAT_MS), "FUSEBOARD_LOG_LEVEL": level}
            actor.environment = dict(os.environ) | said
            self.troupe.add(actor)
        web = actors[0]
        web.environment = {**web.environment, "FUSEBOARD_GATEWAY_URL": self.url("gateway")}
        vendor = _served("-m", "controlplane.demo.vendor")
        self.troupe.add(Actor("vendor", vendor, _outside(), health="/control"))

    def _cast_pods(self) -> None:
        for name, zone in zip(PODS, ZONES, strict=True):
            environment = {
                **_outside(),
                **self._whereabouts(),
                "FUSEBOARD_SERVICE": SERVICE,
                "FUSEBOARD_SERVER": name,
                "FUSEBOARD_ZONE": zone,
                "FUSEBOARD_STATE_DIR": str(self.folder / "pods" / name),
                "VENDOR_URL": self.url("vendor"),
            }
            pod = _served("-m", "controlplane.demo.pod")
            self.troupe.add(Actor(name, pod, environment, health="/healthz"))

    def _whereabouts(self) -> dict[str, str]:
        return {
            "FUSEBOARD_URL": self.url("gateway"),
            "FUSEBOARD_TOKEN": self.seeded.agent_token,
            "FUSEBOARD_REDIS_URL": os.environ["FUSEBOARD_REDIS_URL"],
        }

    def write_pod_environment(self) -> Path:
        """A file with the variables of a pod that anybody may start beside these, for a shell to read."""
        file = self.folder / "pod.env"
        said = self._whereabouts() | {"FUSEBOARD_API_URL": self.url("web")}
        file.touch(mode=0o600)
        file.write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in said.items()))
        return file

    def _cast_load(self) -> None:
        pods = [self.url(name) for name in PODS]
        load = [*_served("-m", "controlplane.demo.load"), "--per-pod", str(self._per_pod), *pods]
        self.troupe.add(Actor("load", load, _outside(), health="/figures"))

    def close(self) -> None:
        """Stop everything: customers first, then pods, which say goodbye to the gateway."""
        self.troupe.dismiss("load", grace_s=3.0)
        self.troupe.dismiss(*PODS, grace_s=5.0)
        self.troupe.dismiss("vendor", *CONTROL_PLANE)
        self.client.close()

    def url(self, name: str) -> str:
        return self.troupe.actors[name].url

    def switch(self, dependency: str, *, failure_percent: int, latency_ms: int) -> None:
        """Decide how the vendor behaves from its next answer on."""
        behaviour = {"failure_percent": failure_percent, "latency_ms": latency_ms}
        self.client.put(f"{self.url('vendor')}/control/{dependency}", json=behaviour).raise_for_status()

    def vendor_calls(self, dependency: str) -> int:
        """Calls the vendor received as this dependency since it started."""
        stations = self.client.get(f"{self.url('vendor')}/control").raise_for_status().json()
        return int(stations.get(dependency, {"received": 0})["received"])

    def figures(self, *, begin_anew: bool = False) -> Figures:
        """What the load generator saw since the account began."""
        url = f"{self.url('load')}/figures"
        accounts = msgspec.json.decode(
            self.client.get(url).raise_for_status().content, type=dict[str, Account]
        )
        if begin_anew:
            self.client.delete(url).raise_for_status()
        return Figures({pod: accounts[self.url(pod)] for pod in PODS})


def _served(*arguments: str) -> list[str]:
    return [*arguments, "--port", "{port}"]


def _outside() -> dict[str, str]:
    """The environment of everything that is not the control plane."""
    return {name: value for name, value in os.environ.items() if name not in _CONTROL_PLANE_ONLY}
