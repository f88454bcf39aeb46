"""The frame of every page around its content: the environment of now, and the fleet as it was drawn last."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from controlplane.status.facts import EnvironmentFacts
from dashboard.live.breakers import Breaker
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

#: The hub draws every second. A frame that is older than this says so.
_AGE_SHOWN_S = 3.0
_HERE = tuple(one.name for one in fields(EnvironmentFacts))


@dataclass(frozen=True, kw_only=True)
class Frame(EnvironmentFacts):
    """The values of the fleet are empty until the hub has drawn it."""

    #: When the fleet was drawn; 0 for not yet.
    drawn_at: float = 0.0
    #: While Postgres is unavailable: how many gateways report pods instead.
    gateways_reporting: int = 0
    #: Whether a gateway reports pods, and why rates are unknown; empty while they are known.
    heard: bool = False
    no_data: str = ""
    #: Pods, those that need attention, and those that are silent.
    pods: int = 0
    pods_attention: int = 0
    silent: int = 0
    #: Epoch and revision -> live pods that have applied it.
    positions: Mapping[tuple[int, int], int] = field(default_factory=dict)
    #: Versions of the agents.
    versions: tuple[str, ...] = ()
    #: Alerts that fire, and the class of the worst.
    alerts: int = 0
    alerts_css: str = ""
    #: Incidents that are active, and the class of the worst.
    incidents: int = 0
    incidents_css: str = ""
    #: Breakers that are not closed, and the class of the worst.
    breakers: int = 0
    breakers_css: str = ""
    #: Breakers whose override ends within minutes, the first to end first.
    ending: tuple[Breaker, ...] = ()
    #: The title of the tab says what is not normal; ``kind`` is that of the icon.
    title: str = ""
    kind: str = "ok"

    @property
    def drawn(self) -> bool:
        return self.drawn_at > 0

    @property
    def aged(self) -> bool:
        """Whether the fleet was drawn so long ago that the page says when."""
        return self.drawn and self.now - self.drawn_at > _AGE_SHOWN_S

    @property
    def applied(self) -> int:
        """Live pods that have applied the revision of now."""
        newest = (self.epoch, self.revision)
        return sum(pods for position, pods in self.positions.items() if position >= newest)

    @property
    def reaching(self) -> bool:
        """Whether pods that send heartbeats have not applied the revision of now yet."""
        return self.applied < self.pods - self.silent


def undrawn(here: EnvironmentFacts) -> Frame:
    """The frame before the first drawing of the fleet."""
    title = "" if here.environment == DEFAULT_ENVIRONMENT else here.environment
    return Frame(**fields_of(here), title=title)


def at(frame: Frame, here: EnvironmentFacts) -> Frame:
    """The frame with the environment as it is now: an edit shows at once, whenever the fleet was drawn."""
    return replace(frame, **fields_of(here))


def fields_of(here: EnvironmentFacts) -> dict[str, Any]:
    return {name: getattr(here, name) for name in _HERE}
