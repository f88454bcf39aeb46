"""Files of descriptors as pages show them: rules in words, and what differs between two files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from controlplane.fleet.descriptor_figures import RuleFigures
from fuseboard.contract.descriptor_file import DescriptorFile
from fuseboard.contract.descriptor_tallies import rule_of
from fuseboard.contract.descriptor_words import HEADERS, meaning, path_text, rules_of
from fuseboard.contract.descriptors import DescriptorDomain, DescriptorRule, Entry, Headers, Place, rule_text

_NOT_ASKED = RuleFigures(asked=0, refused=0, shadow=0)
_Path = tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class RuleLine:
    place: Place
    line: int
    #: The rules above it, and its own key and value.
    above: str
    name: str
    meaning: str
    dependency: str
    figures: RuleFigures


@dataclass(frozen=True, kw_only=True)
class RuleChange:
    #: ``added``, ``changed`` or ``removed``.
    what: str
    rule: str
    before: str = ""
    after: str = ""
    #: The headers of answers are those of the domain.
    is_of_rule: bool = True


@dataclass(frozen=True, kw_only=True)
class FileDifference:
    changes: tuple[RuleChange, ...]
    #: Rules that both files have are in another order, which decides between two values with a ``*``.
    is_reordered: bool

    def number(self, what: str) -> int:
        return sum(change.what == what and change.is_of_rule for change in self.changes)

    @property
    def words(self) -> str:
        """``Rules: 2 added, 1 changed``."""
        counts = [(self.number(what), what) for what in ("added", "changed", "removed")]
        parts = [f"{number:,} {what}" for number, what in counts if number]
        found = [
            *([f"rules: {', '.join(parts)}"] if parts else []),
            *(["the order of rules changes"] if self.is_reordered else []),
            *(["the headers of answers change"] if not all(one.is_of_rule for one in self.changes) else []),
        ]
        return "; ".join(found or ["no rule changes"]).capitalize()


def rule_lines(file: DescriptorFile, figures: Mapping[str, RuleFigures]) -> list[RuleLine]:
    """Every rule in the order of the file. A file with problems has none.

    ``figures``: as ``DomainFigures.rules``.
    """
    if file.domain is None:
        return []
    return [
        RuleLine(
            place=place,
            line=file.lines[place],
            above=path_text(path[:-1]),
            name=rule_text(path[-1]),
            meaning=meaning(path[-1]),
            dependency=path[-1].dependency,
            figures=figures.get(rule_of(path), _NOT_ASKED),
        )
        for place, path in rules_of(file.domain)
    ]


def difference_of_rules(before: DescriptorDomain | None, after: DescriptorDomain | None) -> FileDifference:
    """``None`` for no rules."""
    old, new = (dict(_by_path(domain)) if domain is not None else {} for domain in (before, after))
    changes = [change for path in (*new, *(old.keys() - new.keys())) if (change := _change(path, old, new))]
    was, now = (domain.headers if domain is not None else Headers.OFF for domain in (before, after))
    if was is not now:
        changes.append(
            RuleChange(
                what="changed",
                rule="headers of answers",
                before=HEADERS[was],
                after=HEADERS[now],
                is_of_rule=False,
            )
        )
    both = [path for path in old if path in new]
    return FileDifference(changes=tuple(changes), is_reordered=both != [path for path in new if path in old])


def _by_path(domain: DescriptorDomain) -> Iterator[tuple[_Path, DescriptorRule]]:
    for _, path in rules_of(domain):
        yield tuple((rule.key, rule.value) for rule in path), replace(path[-1], then=())


def _change(
    path: _Path, old: dict[_Path, DescriptorRule], new: dict[_Path, DescriptorRule]
) -> RuleChange | None:
    before, after = old.get(path), new.get(path)
    if before == after:
        return None
    what = "added" if before is None else "removed" if after is None else "changed"
    return RuleChange(
        what=what,
        rule=" > ".join(f"{key}={value}" if value else key for key, value in path),
        before=meaning(before) if before is not None else "",
        after=meaning(after) if after is not None else "",
    )
