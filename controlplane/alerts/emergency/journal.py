"""The alerts of level 3 that a gateway sent: on disk before and after each attempt, until Postgres has it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import structlog
from msgspec import MsgspecError, Struct, json

from controlplane.alerts.emergency.plan_files import replace
from controlplane.alerts.models import Alert, Receiver

_NAMESPACE = UUID("6f1d6a52-6f0e-4c55-9d0a-2f3b8f3c2f10")
#: Alerts that began within the same span have the same messages, whichever gateway sends them.
SPAN_S = 600
#: Episodes of one gateway. When there are more, those that ended first are forgotten first.
MAX_EPISODES = 200
MAX_BYTES = 4 * 1024 * 1024

#: The fields of an episode that the row of its alert has too.
_SHARED = ("environment", "key", "severity", "level", "text", "detail", "runbook", "subject_kind")

log = structlog.get_logger(__name__)


class Message(Struct, kw_only=True):
    """One message to one receiver: a row of ``Delivery`` as far as a gateway knows it."""

    id: str
    receiver: int
    document: dict[str, Any]
    #: ``waiting``, ``sending``, ``sent`` or ``gave_up``.
    state: str = "waiting"
    attempts: int = 0
    result: str = ""
    sent_at: float | None = None
    #: Unix seconds; not before.
    next_at: float = 0.0

    @property
    def open(self) -> bool:
        return self.state in ("waiting", "sending")


class Episode(Struct, kw_only=True):
    """One alert that fired while no worker could send it. Moments are unix seconds."""

    environment: str
    key: str
    severity: str
    level: int
    text: str
    detail: str
    runbook: str
    subject_kind: str
    true_since: float
    fired_at: float
    #: When the condition was gone again; ``None`` while it lasts.
    over_at: float | None = None
    #: Another gateway sent it.
    by_other: bool = False
    escalations: list[Any] = []
    messages: list[Message] = []

    @property
    def settled(self) -> bool:
        """No message is on its way."""
        return not any(message.open for message in self.messages)


class Journal:
    """The episodes of one gateway process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failing = False
        self.episodes: list[Episode] = _read(file)
        for episode in self.episodes:
            for message in episode.messages:
                if message.state == "sending":
                    # Whether it arrived is unknown. The receiver recognizes a repetition by its id.
                    message.state = "waiting"

    def open(self, environment: str, key: str) -> Episode | None:
        """The episode of an alert that is not over."""
        for episode in self.episodes:
            if (episode.environment, episode.key, episode.over_at) == (environment, key, None):
                return episode
        return None

    def sent_lately(self, environment: str, key: str, since: float) -> bool:
        """Whether an alert that began at ``since`` would repeat the messages of one before."""
        span = since // SPAN_S
        return any(
            (one.environment, one.key) == (environment, key) and one.true_since // SPAN_S >= span
            for one in self.episodes
        )

    def add(self, episode: Episode) -> None:
        self.episodes.append(episode)
        while len(self.episodes) > MAX_EPISODES:
            self.episodes.remove(min(self.episodes, key=lambda one: (one.over_at is None, one.fired_at)))
        self.save()

    def unhanded(self, environment: str) -> int:
        """How many episodes Postgres must get before another process may send about them."""
        return sum(one.environment == environment and not one.by_other for one in self.episodes)

    def drop(self, episodes: list[Episode]) -> None:
        if episodes:
            self.episodes = [one for one in self.episodes if not any(one is other for other in episodes)]
            self.save()

    def save(self) -> None:
        """Write it to the disk. A disk that fails delays no message: the copy in memory goes on."""
        try:
            data = json.encode(self.episodes)
            if len(data) > MAX_BYTES:
                raise OSError(f"the journal has {len(data)} bytes")
            replace(self._file, data)
        except OSError as error:
            if not self._failing:
                log.error("oncall.journal_not_written", error=str(error))
            self._failing = True
        else:
            self._failing = False


def message_id(episode: Episode, receiver: Receiver) -> str:
    """It is the same for each gateway that sends it, and for each attempt."""
    start = int(episode.true_since // SPAN_S) * SPAN_S
    return str(uuid5(_NAMESPACE, f"{episode.environment}/{episode.key}/{start}/{receiver.pk}"))


def episode_of(alert: Alert, *, since: float | None, now: float, by_other: bool) -> Episode:
    """``since``: the beginning of the alert, if another gateway knows an earlier one."""
    return Episode(
        true_since=since or alert.true_since.timestamp(),
        fired_at=now,
        by_other=by_other,
        **{name: getattr(alert, name) for name in _SHARED},
    )


def alert_of(episode: Episode) -> Alert:
    """The row that Postgres would have."""
    return Alert(
        worst=episode.severity,
        state="firing",
        true_since=datetime.fromtimestamp(episode.true_since, UTC),
        level_since=datetime.fromtimestamp(episode.true_since, UTC),
        fired_at=datetime.fromtimestamp(episode.fired_at, UTC),
        **{name: getattr(episode, name) for name in _SHARED},
    )


def _read(file: Path) -> list[Episode]:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise OSError("it is too large")
        return json.decode(file.read_bytes(), type=list[Episode])
    except FileNotFoundError:
        return []
    except (OSError, MsgspecError) as error:
        # Kept for a person to look at: the next write would replace it.
        log.error("oncall.journal_unreadable", error=str(error))
        try:
            file.rename(file.with_suffix(".unreadable"))
        except OSError:
            log.error("oncall.journal_not_kept")
        return []
