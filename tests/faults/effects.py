"""What jobs and locks wrote, in a database that compares fences as docs/primitives.md says."""

import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_TABLES = """
CREATE TABLE IF NOT EXISTS guarded (name TEXT PRIMARY KEY, fence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS effect (
    name TEXT NOT NULL,
    fence INTEGER NOT NULL,
    owner TEXT NOT NULL,
    at_ns INTEGER NOT NULL,
    written INTEGER NOT NULL
);
"""


@dataclass(frozen=True)
class Effect:
    """One write of an owner whose ``check`` had passed. ``at_ns``: by the clock that all processes share."""

    name: str
    fence: int
    owner: str
    at_ns: int
    #: Whether the database took it: it refuses a lower fence.
    written: bool


class Effects:
    """Many processes write; the test reads."""

    def __init__(self, path: Path | str) -> None:
        # Nothing here survives the machine, so nothing waits for its disk.
        self._database = sqlite3.connect(path, timeout=10, isolation_level=None)
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.executescript(_TABLES)

    def write(self, name: str, fence: int, owner: str, at_ns: int) -> bool:
        """``at_ns``: from before the check of the owner, so that waits in between prove nothing wrong."""
        with self._database as database:
            database.execute("BEGIN IMMEDIATE")
            written = database.execute(
                "INSERT INTO guarded VALUES (:name, :fence) "
                "ON CONFLICT (name) DO UPDATE SET fence = :fence WHERE fence <= :fence",
                {"name": name, "fence": fence},
            ).rowcount
            database.execute(
                "INSERT INTO effect VALUES (?, ?, ?, ?, ?)", (name, fence, owner, at_ns, written)
            )
        return written == 1

    def read(self) -> list[Effect]:
        rows = self._database.execute("SELECT * FROM effect ORDER BY rowid")
        return [Effect(*row[:4], bool(row[4])) for row in rows]

    def close(self) -> None:
        self._database.close()


@dataclass(frozen=True)
class Judged:
    """What the effects of all owners show."""

    #: Name -> its fences, in the order of their first effects.
    fences: dict[str, list[int]]
    #: Seconds in which several owners of one name passed their checks: of the name with most.
    together_s: float
    #: Writes that the database refused.
    refused: int
    #: What must never happen.
    wrong: str

    def repeated(self) -> set[str]:
        """Names with more than one owner."""
        return {name for name, fences in self.fences.items() if len(fences) > 1}


def judge(effects: list[Effect], since_ns: int = 0) -> Judged:
    """Compare the owners of each name. ``fences`` has those with an effect since ``since_ns``."""
    of_name: dict[str, list[Effect]] = defaultdict(list)
    for effect in effects:
        of_name[effect.name].append(effect)
    together_s, wrong = 0.0, []
    fences: dict[str, list[int]] = defaultdict(list)
    for name, every in of_name.items():
        every.sort(key=lambda effect: effect.at_ns)
        first: dict[int, Effect] = {}
        last: dict[int, Effect] = {}
        for effect in every:
            owner = first.setdefault(effect.fence, effect).owner
            if owner != effect.owner:
                wrong.append(f"{name}: {owner} and {effect.owner} have the fence {effect.fence}")
            last[effect.fence] = effect
        spans = [(effect.at_ns, last[fence].at_ns) for fence, effect in first.items()]
        together_s = max(together_s, _together_ns(spans) / 1e9)
        late = {effect.fence for effect in every if effect.at_ns >= since_ns}
        if late:
            fences[name] = [fence for fence in first if fence in late]
        wrong += [
            f"{name}: the fence {later} comes after {earlier}"
            for earlier, later in pairwise(first)
            if later < earlier
        ]
    refused = sum(not effect.written for effect in effects)
    return Judged(fences, together_s, refused, "; ".join(wrong))


def _together_ns(spans: list[tuple[int, int]]) -> int:
    """How long two or more of these spans last at once."""
    changes = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    owners = together = 0
    for (at, change), (then, _) in pairwise(changes):
        owners += change
        together += (then - at) * (owners > 1)
    return together
