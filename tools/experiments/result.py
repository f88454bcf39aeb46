"""What an experiment expects, and what it found."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tools.experiments.chart import Chart


@dataclass
class Result:
    """``checks`` are statements and whether they hold; ``table`` has a heading and rows."""

    key: str
    title: str
    #: What is fed in.
    traffic: str
    #: What should happen.
    expected: str
    charts: tuple[Chart, ...]
    table: tuple[tuple[str, ...], ...] = ()
    checks: list[tuple[str, bool]] = field(default_factory=list)

    def check(self, statement: str, holds: bool) -> None:
        self.checks.append((statement, bool(holds)))

    @property
    def holds(self) -> bool:
        return bool(self.checks) and all(holds for _, holds in self.checks)


Experiment = Callable[[], Result]


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"


def quantile(values: list[float], part: float) -> float | None:
    """The nearest rank; ``None`` without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
