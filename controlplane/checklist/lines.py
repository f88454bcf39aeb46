"""One line of the checklist: what is checked, what was found, and what to do."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from controlplane import phrases

#: Names that a line lists.
MOST_NAMES = 5


class Verdict(StrEnum):
    OK = "ok"
    ATTENTION = "attention"
    MISSING = "missing"
    #: The control plane does not know; the line says why.
    UNCHECKED = "unchecked"
    #: Only a person knows.
    CONFIRM = "confirm"


@dataclass(frozen=True, kw_only=True)
class Line:
    key: str
    group: str
    check: str
    found: str
    verdict: Verdict
    do: str = ""
    #: A file of the documentation, with an anchor.
    doc: str = ""


@dataclass(frozen=True, kw_only=True)
class Item:
    """What a line is about. Its methods are the verdicts."""

    key: str
    group: str
    check: str
    do: str
    doc: str

    def ok(self, found: str) -> Line:
        return self._line(found, Verdict.OK, "")

    def attention(self, found: str) -> Line:
        return self._line(found, Verdict.ATTENTION, self.do)

    def missing(self, found: str) -> Line:
        return self._line(found, Verdict.MISSING, self.do)

    def unchecked(self, why: str) -> Line:
        return self._line(why, Verdict.UNCHECKED, self.do)

    def confirm(self, found: str) -> Line:
        return self._line(found, Verdict.CONFIRM, self.do)

    def each(
        self,
        bad: Sequence[str],
        among: Collection[object],
        *,
        wrong: str,
        right: str,
        worst: Verdict = Verdict.ATTENTION,
        none: str = "There is no dependency.",
    ) -> Line:
        """A line about several things: the bad ones by name, or that all of them are right."""
        if not among:
            return self.unchecked(none)
        if not bad:
            return self.ok(f"{right} ({len(among)})")
        return self._line(f"{len(bad)} of {len(among)} {wrong}: {listed(bad)}", worst, self.do)

    def _line(self, found: str, verdict: Verdict, do: str) -> Line:
        return Line(
            key=self.key,
            group=self.group,
            check=self.check,
            found=found,
            verdict=verdict,
            do=do,
            doc=f"docs/{self.doc}",
        )


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return phrases.listed(names, MOST_NAMES, joint=", and")
