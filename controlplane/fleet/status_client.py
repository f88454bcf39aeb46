"""Fleet status: what gateways know of the fleet, asked over HTTP while Postgres is unavailable.

Gateways keep the last heartbeat of every pod in memory. A web process asks all gateways of
``FUSEBOARD_GATEWAY_URL`` at once, and no more often than they allow. The gateways' side is
``controlplane.gateway.servers.status_answers``.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Annotated, Any

import msgspec
import structlog
from msgspec import Meta, Struct

from controlplane.fleet import signing
from controlplane.fleet.gateway_urls import gateway_urls
from controlplane.fleet.live import FleetFigures, add_figures
from fuseboard.contract.words import Slug

log = structlog.get_logger(__name__)

PATH = "/control/v1/fleet"
MAX_BODY_BYTES = 512
#: How old a question may be, so that a copied one is soon worthless. Clocks may differ by minutes.
VALID_S = 900.0
#: Seconds that each gateway has: a reader waits for the page.
TIMEOUT_S = 1.0
#: Far more than a gateway full of pods sends.
_MAX_BYTES = 256 * 1024 * 1024

#: Both sides derive their key from it, so it keeps the old name of this module.
_SALT = "controlplane.fleet.asking"


class StatusQuestion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    environment: Slug
    at_us: Annotated[int, Meta(ge=1, le=2**53)]


class StatusAnswer(Struct, frozen=True, kw_only=True):
    #: With the columns of ``fleet_server``; times in unix seconds.
    servers: list[dict[str, Any]]
    #: See ``fleet.Figures``.
    figures: dict[str, Any]
    #: Breakers that this gateway forces open from its memory: see ``override_in_gateways``.
    holds: list[dict[str, Any]]
    #: How long this answer is good enough.
    again_ms: int


@dataclass(frozen=True)
class GatewayStatus:
    """The report of all gateways that answered."""

    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    figures: FleetFigures = field(default_factory=FleetFigures)
    #: By dependency, the newest of each.
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    answered: int = 0
    asked: int = 0


class StatusClient:
    """Asks the gateways, and keeps their last answer for as long as they allow."""

    def __init__(self) -> None:
        self._lock = Lock()
        #: Environment -> until when the last answer is good enough (monotonic), and that answer.
        self._last: dict[str, tuple[float, GatewayStatus]] = {}

    def ask(self, environment: str, *, fresh: bool = False) -> GatewayStatus:
        """The report of gateways; empty when none is configured or none answers. ``fresh``: ask them now."""
        urls = gateway_urls()
        if not urls:
            return GatewayStatus()
        with self._lock:
            until, last = self._last.get(environment, (0.0, GatewayStatus()))
            if time.monotonic() < until and not fresh:
                return last
            answers = _ask_all(urls, environment)
            status = _together(answers, asked=len(urls))
            wait_s = max((answer.again_ms for answer in answers), default=1_000) / 1000
            self._last[environment] = time.monotonic() + wait_s, status
            return status


def is_signed_question(body: bytes, authorization: bytes) -> bool:
    """Whether one of our web processes asks."""
    return signing.is_signed(body, authorization, salt=_SALT)


def _ask_all(urls: Sequence[str], environment: str) -> list[StatusAnswer]:
    body = msgspec.json.encode(StatusQuestion(environment=environment, at_us=time.time_ns() // 1000))
    with ThreadPoolExecutor(max_workers=min(8, len(urls)), thread_name_prefix="ask-gateways") as pool:
        return [answer for answer in pool.map(lambda url: _ask_one(url, body), urls) if answer is not None]


def _ask_one(url: str, body: bytes) -> StatusAnswer | None:
    try:
        reply = signing.post(url, PATH, body, salt=_SALT, timeout_s=TIMEOUT_S, most_bytes=_MAX_BYTES)
        return msgspec.json.decode(reply, type=StatusAnswer)
    except (signing.GatewayCallFailed, msgspec.MsgspecError) as error:
        log.warning("fleet.gateway_unanswered", gateway=url, error=str(error)[:300])
        return None


def _together(answers: Sequence[StatusAnswer], *, asked: int) -> GatewayStatus:
    servers: dict[str, dict[str, Any]] = {}
    for answer in answers:
        for row in answer.servers:
            # Two gateways may know a pod: the one with its last heartbeat is right.
            known = servers.get(row["name"])
            if known is None or known["last_seen_at"] < row["last_seen_at"]:
                servers[row["name"]] = row
    figures = add_figures([answer.figures for answer in answers])
    # Ids begin with the moment of the override.
    every = sorted((one for answer in answers for one in answer.holds), key=lambda one: str(one["id"]))
    overrides = {one["dependency"]: one for one in every}
    return GatewayStatus(servers, figures, overrides, answered=len(answers), asked=asked)
