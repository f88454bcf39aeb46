"""The fleet as gateways know it, asked over HTTP while Postgres is away.

Gateways keep in memory what every server said with its last beat. A web process asks those of
``FUSEBOARD_GATEWAY_URL``, all at once, and no more often than they wish.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Annotated, Any

import msgspec
import structlog
from django.conf import settings
from msgspec import Meta, Struct

from controlplane.fleet import signing
from controlplane.fleet.live import FleetFigures, add_figures
from fuseboard.contract.words import Slug

log = structlog.get_logger(__name__)

PATH = "/control/v1/fleet"
MAX_BODY_BYTES = 512
#: A question that was overheard is of no use for long; web processes' clocks may be wrong by minutes.
VALID_S = 900.0
#: For each gateway; somebody waits for the page.
TIMEOUT_S = 1.0
#: Far more than a gateway full of servers tells.
_MOST_BYTES = 256 * 1024 * 1024

_SALT = "controlplane.fleet.asking"


class Question(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    environment: Slug
    at_us: Annotated[int, Meta(ge=1, le=2**53)]


class Answer(Struct, frozen=True, kw_only=True):
    #: As the columns of ``fleet_server`` are called; times in unix seconds.
    servers: list[dict[str, Any]]
    #: See ``fleet.Figures``.
    figures: dict[str, Any]
    #: Breakers this gateway holds open in its memory: see ``HandedHold``.
    holds: list[dict[str, Any]]
    #: Not to be asked again before.
    again_ms: int


@dataclass(frozen=True)
class Told:
    """What all gateways that answered say together."""

    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    figures: FleetFigures = field(default_factory=FleetFigures)
    #: By dependency, the newest of each.
    holds: dict[str, dict[str, Any]] = field(default_factory=dict)
    answered: int = 0
    asked: int = 0


_lock = Lock()
#: Environment -> until when the last answer is good enough (monotonic), and that answer.
_known: dict[str, tuple[float, Told]] = {}


def is_asked_by_us(body: bytes, authorization: bytes) -> bool:
    return signing.is_signed(body, authorization, salt=_SALT)


def ask(environment: str, *, fresh: bool = False) -> Told:
    """What gateways know; nothing when none is named, or none answers. ``fresh``: ask them now."""
    urls: list[str] = settings.GATEWAY_URLS
    if not urls:
        return Told()
    with _lock:
        until, known = _known.get(environment, (0.0, Told()))
        if time.monotonic() < until and not fresh:
            return known
        answers = _ask_all(urls, environment)
        told = _together(answers, asked=len(urls))
        wait_s = max((answer.again_ms for answer in answers), default=1_000) / 1000
        _known[environment] = time.monotonic() + wait_s, told
        return told


def _ask_all(urls: Sequence[str], environment: str) -> list[Answer]:
    body = msgspec.json.encode(Question(environment=environment, at_us=time.time_ns() // 1000))
    with ThreadPoolExecutor(max_workers=min(8, len(urls)), thread_name_prefix="ask-gateways") as pool:
        return [answer for answer in pool.map(lambda url: _ask_one(url, body), urls) if answer is not None]


def _ask_one(url: str, body: bytes) -> Answer | None:
    try:
        said = signing.post(url, PATH, body, salt=_SALT, timeout_s=TIMEOUT_S, most_bytes=_MOST_BYTES)
        return msgspec.json.decode(said, type=Answer)
    except (signing.Unanswered, msgspec.MsgspecError) as error:
        log.warning("fleet.gateway_not_asked", gateway=url, error=str(error)[:300])
        return None


def _together(answers: Sequence[Answer], *, asked: int) -> Told:
    servers: dict[str, dict[str, Any]] = {}
    for answer in answers:
        for row in answer.servers:
            # Of two gateways that know a server, the one that heard from it last is right.
            known = servers.get(row["name"])
            if known is None or known["last_seen_at"] < row["last_seen_at"]:
                servers[row["name"]] = row
    figures = add_figures([answer.figures for answer in answers])
    # Their ids begin with when they were made.
    every = sorted((hold for answer in answers for hold in answer.holds), key=lambda hold: str(hold["id"]))
    holds = {hold["dependency"]: hold for hold in every}
    return Told(servers, figures, holds, answered=len(answers), asked=asked)
