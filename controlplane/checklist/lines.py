"""One line of the checklist: what is checked, what was found, and what to do."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from controlplane import phrases
from controlplane.checklist.read_state import CheckedDependency, State

#: Names that a line lists.
MAX_NAMES = 5


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


#: A verdict, and what was found.
Answer = tuple[Verdict, str]
Check = Callable[[State], Answer]


@dataclass(frozen=True)
class Item:
    """A row of the checklist. Its check is a pure function."""

    key: str
    check: str
    do: str
    doc: str
    answer: Check

    def line(self, group: str, state: State) -> Line:
        verdict, found = self.answer(state)
        return Line(
            key=self.key,
            group=group,
            check=self.check,
            found=found,
            verdict=verdict,
            do="" if verdict is Verdict.OK else self.do,
            doc=f"docs/{self.doc}",
        )


def each(
    bad: Sequence[str],
    among: Collection[object],
    wrong: str,
    right: str,
    *,
    worst: Verdict = Verdict.ATTENTION,
    none: str = "There is no dependency.",
) -> Answer:
    """An answer about several things: the bad ones by name, or that all of them are right."""
    if not among:
        return Verdict.UNCHECKED, none
    if not bad:
        return Verdict.OK, f"{right} ({len(among)})"
    return worst, f"{len(bad)} of {len(among)} {wrong}: {listed(bad)}"


def each_dependency(
    bad: Callable[[CheckedDependency], object],
    wrong: str,
    right: str,
    *,
    among: Callable[[CheckedDependency], object] = lambda one: True,
    worst: Verdict = Verdict.ATTENTION,
    none: str = "There is no dependency.",
) -> Check:
    """The check that no dependency, or none of those to which it applies, is bad."""

    def check(state: State) -> Answer:
        known = [one for one in state.dependencies if among(one)]
        return each([one.name for one in known if bad(one)], known, wrong, right, worst=worst, none=none)

    return check


def ok_if(fine: object, found: str, otherwise: str = "", *, worst: Verdict = Verdict.ATTENTION) -> Answer:
    """An answer about one thing; ``otherwise`` was found if it is not fine."""
    return (Verdict.OK, found) if fine else (worst, otherwise or found)


def always(verdict: Verdict, found: str) -> Check:
    """The answer to what the control plane never knows."""
    return lambda state: (verdict, found)


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return phrases.listed(names, MAX_NAMES, joint=", and")
