"""The running demo: its processes, its figures, and the switches of its vendor."""

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from tools.demo.load import Account
from tools.demo.model_scenario import ASSISTANT
from tools.demo.processes import Process, Processes
from tools.demo.scenario import BEAT_MS, DEPENDENCIES, PODS, SERVICE, ZONES
from tools.demo.seed import Seeded

CONTROL_PLANE = ("web", "gateway", "worker", "beat")

#: An idle machine with two cores starts everything within this time.
_IDLE_START_S = 6.0
#: Variables that a pod must not get: it knows neither Postgres nor the queue.
_CONTROL_PLANE_ONLY = ("DATABASE_URL", "FUSEBOARD_BROKER_URL", "FUSEBOARD_DATA_DIR", "FUSEBOARD_PLAIN_HTTP")


@dataclass(frozen=True)
class Figures:
    """Figures of the load generator, by pod."""

    pods: dict[str, Account]

    @property
    def answered(self) -> int:
        return sum(account.answered for account in self.pods.values())

    @property
    def slowest_ms(self) -> float:
        return max(account.slowest_ms for account in self.pods.values())

    @property
    def typical_ms(self) -> float:
        """The mean over all responses but those to receipts."""
        receipts = sum(account.receipts for account in self.pods.values())
        return sum(account.total_ms for account in self.pods.values()) / max(1, self.answered - receipts)

    def delays(self, calm: "Figures") -> str:
        """What an outage added to calls. ``calm`` are the figures before it."""
        receipt_ms = max(account.slowest_receipt_ms for account in self.pods.values())
        return (
            f"longest added delay {max(0.0, self.slowest_ms - calm.typical_ms):.0f} ms (slowest call before"
            f" {calm.slowest_ms:.0f} ms); submits of receipts, which wait for the answer of Redis, took up to"
            f" {receipt_ms:.0f} ms"
        )

    def trouble(self) -> str:
        """What no caller should see: calls without a response, statuses other than 200 and 429."""
        found = []
        for pod, account in self.pods.items():
            bad = {status: n for status, n in account.statuses.items() if status not in ("200", "429")}
            if bad:
                found.append(f"{pod} answered {bad}")
            if account.unanswered:
                found.append(f"{pod} left {account.unanswered} calls unanswered ({account.error})")
        return "; ".join(found)


class Demo:
    """``web_port`` is preferred; another port is used when it is taken, and any for 0.

    ``light``: the control plane alone, for a developer who brings a pod.
    """

    def __init__(
        self, folder: Path, seeded: Seeded, *, per_pod: float, web_port: int = 0, light: bool = False
    ) -> None:
        self.folder = folder
        self.seeded = seeded
        self.processes = Processes(folder / "logs")
        self.client = httpx.Client(timeout=5.0, trust_env=False)
        #: How many times longer than an idle machine this one takes: checkpoints wait so much longer.
        self.patience = 1.0
        self._per_pod = per_pod
        self._light = light
        self._add_control_plane(web_port)

    def open(self, say: Callable[[str], None]) -> None:
        """Start everything and wait until all of it answers. Raises ``DidNotStart``."""
        began = time.monotonic()
        say(f"Starting {', '.join(CONTROL_PLANE)}{'' if self._light else ' and the vendor'}")
        if self._light:
            self.processes.begin(*CONTROL_PLANE)
            self.processes.wait_until_ready(CONTROL_PLANE)
            return
        self._add_vendor()
        self.processes.begin("vendor", *CONTROL_PLANE)
        self.processes.wait_until_ready(["vendor", "gateway"])
        for dependency in DEPENDENCIES:
            self.switch(dependency.name, failure_percent=0, latency_ms=dependency.latency_ms)
        # Only now: their variables contain ports, and a process that lost a race has another one since.
        self._add_pods()
        say(f"Starting {', '.join((*PODS, ASSISTANT))}")
        self.processes.begin(*PODS, ASSISTANT)
        self.processes.wait_until_ready(PODS)
        say("Waiting for web, and starting the traffic")
        self.processes.wait_until_ready(["web"])
        self._add_load()
        self.processes.begin("load")
        self.processes.wait_until_ready(self.processes.by_name)
        self.patience = max(1.0, (time.monotonic() - began) / _IDLE_START_S)

    def _add_control_plane(self, web_port: int) -> None:
        celery = ["-m", "celery", "-A", "controlplane"]
        worker = [*celery, "worker", "--pool=threads", "--concurrency=2"]
        started = (
            Process("web", _served("manage.py", "web", "--exactly"), health="/healthz", port=web_port),
            Process("gateway", _served("manage.py", "gateway", "--exactly"), health="/healthz"),
            Process(
                "worker",
                [*worker, "--without-gossip", "--without-mingle"],
                health="/healthz",
                port_variable="FUSEBOARD_WORKER_METRICS_PORT",
            ),
            Process("beat", [*celery, "beat"]),
        )
        for process in started:
            # At INFO, Celery would log every second that there was nothing to do.
            level = "WARNING" if process.name in ("worker", "beat") else "INFO"
            said = {
                "FUSEBOARD_BEAT_MS": str(BEAT_MS),
                "FUSEBOARD_LOG_LEVEL": level,
                # Receivers of the demo are on this machine, and nobody waits long for an alert.
                "FUSEBOARD_WEBHOOK_NETWORKS": "127.0.0.0/8",
                "FUSEBOARD_ONCALL_AFTER_S": "15",
            }
            process.environment = dict(os.environ) | said
            self.processes.add(process)
        web, *others = started
        web.environment = {**web.environment, "FUSEBOARD_GATEWAY_URL": self.url("gateway")}
        for process in others:
            # Links in messages lead there. Web has none, so that it accepts every address of this machine.
            process.environment = {**process.environment, "FUSEBOARD_ORIGINS": self.url("web")}

    def _add_vendor(self) -> None:
        vendor = _served("-m", "tools.demo.vendor")
        self.processes.add(Process("vendor", vendor, _outside(), health="/control"))

    def _add_pods(self) -> None:
        for name, zone in zip(PODS, ZONES, strict=True):
            self._add_pod(name, "tools.demo.pod", service=SERVICE, zone=zone)
        self._add_pod(ASSISTANT, "tools.demo.assistant", service=ASSISTANT, zone=ZONES[0])

    def _add_pod(self, name: str, module: str, *, service: str, zone: str) -> None:
        environment = self.environment_of_pod(name, service=service, zone=zone)
        self.processes.add(Process(name, _served("-m", module), environment, health="/healthz"))

    def environment_of_pod(self, name: str, *, service: str, zone: str) -> dict[str, str]:
        """The variables of a process whose agent has this name."""
        return {
            **_outside(),
            **self._whereabouts(),
            "FUSEBOARD_SERVICE": service,
            "FUSEBOARD_SERVER": name,
            "FUSEBOARD_ZONE": zone,
            "FUSEBOARD_STATE_DIR": str(self.folder / "pods" / name),
            "VENDOR_URL": self.url("vendor"),
        }

    def _whereabouts(self) -> dict[str, str]:
        return {
            "FUSEBOARD_URL": self.url("gateway"),
            "FUSEBOARD_TOKEN": self.seeded.agent_token,
            "FUSEBOARD_REDIS_URL": os.environ["FUSEBOARD_REDIS_URL"],
        }

    def write_pod_environment(self) -> Path:
        """A shell file with the variables for a pod that you start yourself."""
        file = self._pod_environment
        said = self._whereabouts() | {"FUSEBOARD_API_URL": self.url("web")}
        file.touch(mode=0o600)
        file.write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in said.items()))
        return file

    @property
    def _pod_environment(self) -> Path:
        return self.folder / "pod.env"

    def _add_load(self) -> None:
        pods = [self.url(name) for name in PODS]
        load = [*_served("-m", "tools.demo.load"), "--per-pod", str(self._per_pod), *pods]
        self.processes.add(Process("load", load, _outside(), health="/figures"))

    def close(self) -> None:
        """Stop everything: traffic first, then pods, which report to the gateway that they leave."""
        self.processes.stop("load", grace_s=3.0)
        self.processes.stop(*PODS, ASSISTANT, grace_s=5.0)
        self.processes.stop("vendor", *CONTROL_PLANE)
        # Its addresses answer no longer.
        self._pod_environment.unlink(missing_ok=True)
        self.client.close()

    def url(self, name: str) -> str:
        return self.processes.by_name[name].url

    def switch(self, dependency: str, *, failure_percent: int, latency_ms: int) -> None:
        """Set how the vendor behaves from its next response on."""
        behaviour = {"failure_percent": failure_percent, "latency_ms": latency_ms}
        self.client.put(f"{self.url('vendor')}/control/{dependency}", json=behaviour).raise_for_status()

    def vendor_calls(self, dependency: str) -> int:
        """Calls the vendor received as this dependency since it started."""
        stations = self.client.get(f"{self.url('vendor')}/control").raise_for_status().json()
        return int(stations.get(dependency, {"received": 0})["received"])

    def figures(self, *, reset: bool = False) -> Figures:
        """Figures of the load generator since the last reset."""
        url = f"{self.url('load')}/figures"
        accounts = msgspec.json.decode(
            self.client.get(url).raise_for_status().content, type=dict[str, Account]
        )
        if reset:
            self.client.delete(url).raise_for_status()
        return Figures({pod: accounts[self.url(pod)] for pod in PODS})


def _served(*arguments: str) -> list[str]:
    return [*arguments, "--port", "{port}"]


def _outside() -> dict[str, str]:
    """The environment of everything that is not the control plane."""
    return {name: value for name, value in os.environ.items() if name not in _CONTROL_PLANE_ONLY}
