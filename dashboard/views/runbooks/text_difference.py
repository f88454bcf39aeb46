"""Two texts line by line: what one of them has and the other has not, with a few lines around it."""

from dataclasses import dataclass
from difflib import SequenceMatcher

#: Lines around a change.
_AROUND = 3
#: Comparing takes time that grows with the square of the lines.
MAX_LINES = 4_000


@dataclass(frozen=True)
class Line:
    #: ``same``, ``removed``, ``added`` or ``gap``.
    kind: str
    text: str = ""


@dataclass(frozen=True)
class TextDifference:
    lines: tuple[Line, ...]
    added: int
    removed: int
    #: The texts have too many lines to compare.
    too_long: bool = False


def difference_of(before: str, after: str) -> TextDifference:
    old, new = before.splitlines(), after.splitlines()
    if len(old) + len(new) > MAX_LINES:
        return TextDifference((), 0, 0, too_long=True)
    lines: list[Line] = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_AROUND):
        if lines:
            lines.append(Line("gap"))
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                lines += [Line("same", text) for text in old[old_start:old_end]]
                continue
            lines += [Line("removed", text) for text in old[old_start:old_end]]
            lines += [Line("added", text) for text in new[new_start:new_end]]
    kinds = [line.kind for line in lines]
    return TextDifference(tuple(lines), kinds.count("added"), kinds.count("removed"))
