"""The steps to the first pod of a control plane. A step is done when a process did it."""

import socket
import time
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from django.conf import settings
from django.utils import timezone

from controlplane.accounts.models import AgentToken
from controlplane.alerts.models import Evaluation
from controlplane.embedded import ServerFailed, look_up
from controlplane.env import LOOKED_UP
from controlplane.fleet.models import Figures
from controlplane.installation import COMMAND, IS_CHECKOUT
from controlplane.status.facts import Facts

#: A worker evaluates alerts each 5 s.
_WORKER_RUNS_S = 60.0
#: The port of `manage.py gateway` without options.
_GATEWAY_PORT = 8001

Process = Literal["runs", "stopped", "never"]


@dataclass(frozen=True)
class RedisForPods:
    """The address of Redis ``limits`` for pods."""

    #: Without a login: every reader may see it.
    address: str
    #: The address with its password, which only admins see, when a pod on this machine can use it.
    secret: str = field(default="", repr=False)

    @property
    def is_embedded(self) -> bool:
        return bool(self.secret)


@dataclass(frozen=True, kw_only=True)
class FirstSteps:
    gateway: Process
    worker: Process
    #: Agent tokens that a pod could use now.
    tokens: int
    dependencies: int
    #: The address of the gateway for pods, and how this server knows it.
    address: str
    because: str
    redis: RedisForPods
    #: The words before the name of a command.
    command: str = COMMAND
    is_checkout: bool = IS_CHECKOUT

    @property
    def processes(self) -> bool:
        return self.gateway == self.worker == "runs"

    @property
    def done(self) -> int:
        """Steps of three. The third is a heartbeat, with which the guide disappears."""
        return self.processes + bool(self.tokens)


def read_first_steps(facts: Facts) -> FirstSteps | None:
    """``None`` once a pod has reported: then nothing more is read."""
    if facts.reported or facts.servers:
        return None
    here = {"environment": facts.environment}
    gateway = Figures.objects.filter(**here).order_by("-at").values_list("gateway", flat=True).first()
    evaluated = Evaluation.objects.filter(**here).values_list("at", flat=True).first()
    valid = AgentToken.objects.filter(**here, revoked_at__isnull=True, expires_at__gt=timezone.now())
    address, because = gateway_address(gateway or "")
    return FirstSteps(
        gateway="runs" if facts.current else "stopped" if gateway else "never",
        worker="never"
        if evaluated is None
        else "runs"
        if time.time() - evaluated.timestamp() < _WORKER_RUNS_S
        else "stopped",
        tokens=valid.count(),
        dependencies=len(facts.dependencies),
        address=address,
        because=because,
        redis=redis_for_pods(settings.REDIS_URL),
    )


def redis_for_pods(url: str) -> RedisForPods:
    """The address that pods need. ``url``: the one that this process uses, with its own login."""
    scheme, _, rest = (url or "redis://HOST:6379").partition("://")
    _, login, place = rest.rpartition("@")
    named = f"{scheme}://{'USER:PASSWORD@' if login else ''}{place.partition('?')[0]}"
    return RedisForPods(named, secret=url if url and url == _embedded_redis() else "")


def _embedded_redis() -> str:
    """The address of the embedded Redis of this machine; empty when none runs."""
    try:
        return look_up("FUSEBOARD_REDIS_URL").url
    except ServerFailed:
        return ""


def gateway_address(gateway: str) -> tuple[str, str]:
    """The address that pods need, and how it is known. ``gateway``: ``host:port`` of the last, or empty."""
    if settings.GATEWAY_URLS:
        return settings.GATEWAY_URLS[0].removeprefix(LOOKED_UP), "FUSEBOARD_GATEWAY_URL of web names it"
    scheme = "http" if settings.PLAIN_HTTP else "https"
    host, _, port = gateway.rpartition(":")
    if host:
        host = _in_address(host)
        # A gateway listens on the loopback address by default.
        alone = host == socket.gethostname() and not settings.ORIGINS
        return f"{scheme}://{'127.0.0.1' if alone else host}:{port}", "the gateway itself reported it"
    here = urlsplit(settings.ORIGINS[0]).hostname if settings.ORIGINS else None
    here = _in_address(here or "127.0.0.1")
    return f"{scheme}://{here}:{_GATEWAY_PORT}", (
        "it is assumed from the host of these pages and the port of a gateway without options"
    )


def _in_address(host: str) -> str:
    """The host as URLs have it: an IPv6 address stands in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
