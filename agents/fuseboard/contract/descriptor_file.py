"""Files of envoyproxy/ratelimit, with six more words: ``means``, ``dependency``, ``measure``, ``charge``,
``accepts_override`` and ``headers``.

Such a file has the rules of one domain. The first 100 problems are found at once, each with its line.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import yaml
from msgspec.structs import replace
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fuseboard.contract.descriptor_words import BUCKETS
from fuseboard.contract.descriptors import (
    DOMAIN_RULE,
    MAX_LEVELS,
    MAX_TEXT,
    WILDCARD,
    Charge,
    DescriptorDomain,
    DescriptorRule,
    Headers,
    Means,
    Place,
    is_domain,
    problems_of,
    rule_text,
)
from fuseboard.contract.limits import Limit
from fuseboard.contract.words import MAX_LIMIT, Algorithm, Period, is_slug

#: Bytes of a file. Comments do not count for a domain, but are read.
MAX_FILE = 256 * 1024
#: The levels of YAML: a mapping and a list for each level of rules, and the parts of the last rule.
_MAX_DEPTH = 2 * MAX_LEVELS + 6
#: Keys, values and brackets of YAML. 1,000 rules have fewer, also with every word.
_MAX_PARTS = 50_000
#: Problems after which reading ends. A wrong file has up to one for each two bytes, and a person reads few.
MAX_PROBLEMS = 100

#: Envoy Gateway writes a name, too. envoyproxy/ratelimit does not use it either.
_ROOT = ("domain", "descriptors", "headers", "name")
#: Flags of envoyproxy/ratelimit that only change its metrics.
_METRICS = ("detailed_metric", "value_to_metric")
_RULE = (
    "key",
    "value",
    "rate_limit",
    "shadow_mode",
    "share_threshold",
    "descriptors",
    *("means", "dependency", "measure", "charge", "accepts_override"),
    *_METRICS,
    *("metadata", "quota_mode"),
)
_LIMIT = ("unit", "requests_per_unit", "unlimited", "name", "replaces")
_REPLACED = ("name",)

_MS = BUCKETS | {"hour": 3_600_000, "day": 86_400_000}
#: The nominal length of the longer periods.
_LONG_MS = {"week": 7 * _MS["day"], "month": 31 * _MS["day"]}

_NULL, _INT, _BOOL = (f"tag:yaml.org,2002:{name}" for name in ("null", "int", "bool"))
#: A 0 before another digit begins an octal number in YAML, which people rarely mean.
_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,17})")
_TRUE = frozenset({"true", "yes", "on"})
#: Characters of the name of a limit.
_MAX_NAME = 64
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")

_Word = TypeVar("_Word", bound=StrEnum)


class Remark(NamedTuple):
    """A problem or a note. The line is 0 for the whole file."""

    line: int
    text: str


@dataclass(frozen=True)
class DescriptorFile:
    """The content of a file. ``domain`` is ``None`` if the file has problems."""

    domain: DescriptorDomain | None
    problems: tuple[Remark, ...]
    #: Differences from envoyproxy/ratelimit, and words that are not needed.
    notes: tuple[Remark, ...]
    #: The line of each rule.
    lines: dict[Place, int]


def read_file(text: str) -> DescriptorFile:
    """Read a file. Problems are in the answer; no exception is raised for them."""
    reader = _Reader()
    domain = None
    try:
        domain = reader.read(text)
        if domain is not None:
            for place, problem in problems_of(domain):
                if place not in reader.misread:
                    reader.problem(reader.lines[place], problem)
            if not reader.problems:
                reader.compare((), domain.rules)
    except _TooManyProblemsError:
        more = f"Reading ended after {MAX_PROBLEMS} problems. Correct them, then check the file again."
        reader.problems.append(Remark(reader.problems[-1].line, more))
    by_line = attrgetter("line")
    return DescriptorFile(
        domain=None if reader.problems else domain,
        problems=tuple(sorted(reader.problems, key=by_line)),
        notes=tuple(sorted(reader.notes, key=by_line)),
        lines=reader.lines,
    )


class _TooManyProblemsError(Exception):
    """Nothing more of the file is read."""


class _Reader:
    def __init__(self) -> None:
        self.problems: list[Remark] = []
        self.notes: list[Remark] = []
        self.lines: dict[Place, int] = {}
        #: Rules with words that cannot be read. What is missing in them would look like another problem.
        self.misread: set[Place] = set()

    def problem(self, line: int, text: str) -> None:
        self.problems.append(Remark(line, text))
        if len(self.problems) >= MAX_PROBLEMS:
            raise _TooManyProblemsError

    def note(self, line: int, text: str) -> None:
        self.notes.append(Remark(line, text))

    def read(self, text: str) -> DescriptorDomain | None:
        if len(text.encode(errors="replace")) > MAX_FILE:
            self.problem(0, f"The file is larger than {MAX_FILE // 1024} KiB.")
            return None
        try:
            if not self._is_plain(text):
                return None
            root = yaml.compose(text, Loader=yaml.CSafeLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 0
            self.problem(line, f"This is not valid YAML: {error.problem or error.context}.")
            return None
        except (yaml.YAMLError, UnicodeError) as error:
            self.problem(0, f"This is not valid YAML: {str(error).splitlines()[0]}.")
            return None
        if root is None:
            self.problem(0, "The file is empty.")
            return None
        if _is_of_kubernetes(root):
            self.problem(
                _line(root),
                "This is an object of Kubernetes. The file is the text in it: of a ConfigMap, the value of "
                "one key of its data, such as config.yaml.",
            )
            return None
        words = self._words(root, _ROOT)
        self.lines[()] = _line(root)
        name = self._text(words.get("domain"))
        if name and not is_domain(name):
            self.problem(_line(words["domain"]), f"{name!r} cannot be the name of a domain. {DOMAIN_RULE}")
        if self.problems:
            self.misread.add(())
        headers = self._scalar(words.get("headers"), f"one of {', '.join(Headers)}", _as_headers, Headers.OFF)
        rules = tuple(self._rules((), (), words.get("descriptors")))
        return DescriptorDomain(domain=name, rules=rules, headers=headers)

    def _is_plain(self, text: str) -> bool:
        """Whether the text has one document without aliases and tags, which is not large or nested deeply.

        The tree is built by recursion, so its depth is bounded before.
        """
        depth = documents = 0
        for number, event in enumerate(yaml.parse(text, Loader=yaml.CSafeLoader)):
            line = _line(event)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if documents > 1:
                self.problem(line, "The file must have one document: split it here, or remove this ---.")
            elif number > _MAX_PARTS:
                self.problem(
                    line, f"The file has more than {_MAX_PARTS:,} keys and values: split the domain."
                )
            elif depth > _MAX_DEPTH:
                self.problem(line, f"This is nested too deeply: rules have at most {MAX_LEVELS} levels.")
            elif getattr(event, "anchor", None) is not None:
                self.problem(line, "Anchors and aliases are not allowed: write the values.")
            elif getattr(event, "tag", None) is not None:
                self.problem(line, "Tags are not allowed: write plain values.")
            if self.problems:
                return False
        return True

    def _rules(self, place: Place, above: tuple[str, ...], node: Node | None) -> Iterator[DescriptorRule]:
        for number, item in enumerate(self._items(node)):
            here = (*place, number)
            self.lines[here] = _line(item)
            before = len(self.problems)
            words = self._words(item, _RULE)
            self._read_unused(words)
            keys = (*above, self._text(words.get("key")))
            rule = self._rule(keys, words)
            if len(self.problems) > before:
                self.misread.add(here)
            yield replace(rule, then=tuple(self._rules(here, keys, words.get("descriptors"))))

    def _read_unused(self, words: dict[str, Node]) -> None:
        """Words of envoyproxy/ratelimit without an effect here. Generated files have each flag, as false."""
        for word in _METRICS:
            if self._flag(words.get(word)):
                self.note(
                    _line(words[word]),
                    f"{word} is not needed: it only changes what envoyproxy/ratelimit reports.",
                )
        metadata = words.get("metadata")
        if metadata is not None and not _is_missing(metadata) and metadata.value:
            self.note(
                _line(metadata),
                "metadata is not sent to Envoy: what reads it there as dynamic metadata finds none.",
            )
        if self._flag(words.get("quota_mode")):
            self.problem(
                _line(words["quota_mode"]),
                "quota_mode is not supported: a request is refused if any limit refuses. Remove it, or use "
                "shadow_mode, which never refuses.",
            )

    def _rule(self, keys: tuple[str, ...], words: dict[str, Node]) -> DescriptorRule:
        """The rule with these keys, without the rules below it."""
        shadow = self._flag(words.get("shadow_mode"))
        measure = self._text(words.get("measure")) or "calls"
        limit, rate = None, self._words(words.get("rate_limit"), _LIMIT)
        unlimited = self._flag(rate.get("unlimited"))
        name = self._text(rate.get("name"))
        if unlimited and not _is_missing(rate.get("unit")):
            self.problem(_line(rate["unit"]), "An unlimited rule has no unit: remove it.")
        elif not unlimited and not _is_missing(words.get("rate_limit")):
            limit = self._limit(
                words["rate_limit"],
                rate,
                name=name if is_slug(name) else _limit_name(keys),
                measure=measure,
                shadow=shadow,
            )
        if shadow and limit is None:
            self.note(_line(words["shadow_mode"]), "shadow_mode has no effect without a limit of the rule.")
        return DescriptorRule(
            key=keys[-1],
            value=self._text(words.get("value")),
            limit=limit,
            unlimited=unlimited,
            name=name,
            replaces=tuple(
                self._text(self._words(item, _REPLACED).get("name"))
                for item in self._items(rate.get("replaces"))
            ),
            share=self._flag(words.get("share_threshold")),
            means=self._word(words.get("means"), Means),
            dependency=self._text(words.get("dependency")),
            measure=measure,
            charge=self._word(words.get("charge"), Charge) or Charge.BEFORE,
            accepts_override=self._whole(words.get("accepts_override")),
        )

    def _limit(
        self, node: Node, rate: dict[str, Node], *, name: str, measure: str, shadow: bool
    ) -> Limit | None:
        unit = self._text(rate.get("unit")).lower()
        requests = self._whole(rate.get("requests_per_unit"), "; for more, write unlimited: true")
        if _is_missing(rate.get("requests_per_unit")):
            self.note(_line(node), "requests_per_unit is missing: the limit is 0.")
        fields: dict[str, Any] = {"name": name, "limit": requests, "measure": measure, "shadow": shadow}
        if unit in BUCKETS:
            return Limit(window_ms=_MS[unit], burst=max(1, requests), **fields)
        if unit not in (*_MS, *_LONG_MS):
            self.problem(_line(rate.get("unit", node)), _unknown_unit(unit))
            return None
        if unit == "week":
            self.note(
                _line(rate["unit"]),
                "A week begins on Monday; in envoyproxy/ratelimit, it begins on Thursday.",
            )
        elif unit == "month":
            self.note(
                _line(rate["unit"]),
                "A month is that of the calendar; in envoyproxy/ratelimit, it has 30 days.",
            )
        return Limit(
            window_ms=(_MS | _LONG_MS)[unit], algorithm=Algorithm.FIXED_WINDOW, period=Period(unit), **fields
        )

    def compare(self, place: Place, rules: tuple[DescriptorRule, ...]) -> None:
        """Note where envoyproxy/ratelimit, which joins key and value by ``_``, would confuse two rules."""
        keys = sorted({rule.key for rule in rules})
        for number, rule in enumerate(rules):
            # One key shows it. A note for each would be as many as rules times keys.
            confused = next(filter(None, (_confused(rule, key) for key in keys)), None)
            if confused is not None:
                self.note(
                    self.lines[*place, number],
                    f"envoyproxy/ratelimit joins key and value: it takes {rule_text(rule)} also for "
                    f"{confused}. Fuseboard does not.",
                )
            self.compare((*place, number), rule.then)

    def _words(self, node: Node | None, known: tuple[str, ...]) -> dict[str, Node]:
        if _is_missing(node):
            return {}
        if not isinstance(node, MappingNode):
            self.problem(_line(node), f"This must be a mapping of {', '.join(known)}.")
            return {}
        found: dict[str, Node] = {}
        for key, value in node.value:
            word = key.value if isinstance(key, ScalarNode) else ""
            if word not in known:
                self.problem(_line(key), f"There is no word {word!r} here. The words are {', '.join(known)}.")
            elif word in found:
                self.problem(_line(key), f"{word} appears twice.")
            else:
                found[word] = value
        return found

    def _items(self, node: Node | None) -> list[Node]:
        if _is_missing(node):
            return []
        if not isinstance(node, SequenceNode):
            self.problem(_line(node), "This must be a list: begin each item with -.")
            return []
        return node.value  # type: ignore[no-any-return]  # The stubs of PyYAML have no type of it.

    def _text(self, node: Node | None) -> str:
        text: str = self._scalar(node, f"a text of at most {MAX_TEXT} characters", _as_text, "")
        return text

    def _flag(self, node: Node | None) -> bool:
        flag: bool = self._scalar(node, "true or false", _as_flag, False)
        return flag

    def _whole(self, node: Node | None, advice: str = "") -> int:
        kind = f"a whole number from 0 to {MAX_LIMIT:,}, written in decimal{advice}"
        number: int = self._scalar(node, kind, _as_whole, 0)
        return number

    def _word(self, node: Node | None, words: type[_Word]) -> _Word | None:
        def read(node: ScalarNode) -> _Word | None:
            return next((word for word in words if word.value == node.value), None)

        found: _Word | None = self._scalar(node, f"one of {', '.join(words)}", read, None)
        return found

    def _scalar(self, node: Node | None, kind: str, read: Callable[[ScalarNode], Any], missing: Any) -> Any:
        if _is_missing(node):
            return missing
        value = read(node) if isinstance(node, ScalarNode) else None
        if value is None:
            self.problem(_line(node), f"This must be {kind}.")
            return missing
        return value


def _line(thing: Any) -> int:
    """The line of a node or an event; 0 for none."""
    line: int = thing.start_mark.line + 1 if thing is not None else 0
    return line


def _is_missing(node: Node | None) -> bool:
    return node is None or node.tag == _NULL


def _is_of_kubernetes(root: Node) -> bool:
    keys = [key for key, _ in root.value] if isinstance(root, MappingNode) else []
    return {"apiVersion", "kind"} <= {key.value for key in keys if isinstance(key, ScalarNode)}


def _as_text(node: ScalarNode) -> str | None:
    text: str = node.value
    return text if len(text) <= MAX_TEXT else None


def _as_flag(node: ScalarNode) -> bool | None:
    text: str = node.value
    return text.lower() in _TRUE if node.tag == _BOOL else None


def _as_headers(node: ScalarNode) -> Headers | None:
    """YAML 1.1 reads ``on`` and ``off`` as a flag."""
    flag = _as_flag(node)
    if flag is not None:
        return Headers.ON if flag else Headers.OFF
    return next((word for word in Headers if word.value == node.value), None)


def _as_whole(node: ScalarNode) -> int | None:
    if node.tag != _INT or _WHOLE.fullmatch(node.value) is None:
        return None
    number = int(node.value)
    return number if 0 <= number <= MAX_LIMIT else None


def _limit_name(keys: tuple[str, ...]) -> str:
    """``tenant.remote_address``: the name of a limit to which the file gives none. Of a long one, its end."""
    name = _NOT_IN_NAMES.sub("-", ".".join(keys))[-_MAX_NAME:]
    return name.strip("._-") or "descriptor"


def _confused(rule: DescriptorRule, key: str) -> str | None:
    """Entries of another key that envoyproxy/ratelimit cannot tell from those of the rule."""
    if key == rule.key:
        return None
    joined = f"{rule.key}_{rule.value}" if rule.value else rule.key
    fixed, star, _ = joined.partition(WILDCARD)
    if fixed.startswith(f"{key}_"):
        return f"the key {key} with the value {joined[len(key) + 1 :]!r}"
    # Without a rule for its value, an entry takes the rule that is named like its key.
    if joined == key or (star and f"{key}_".startswith(fixed)):
        return f"the key {key}"
    return None


def _unknown_unit(unit: str) -> str:
    units = ", ".join((*_MS, *_LONG_MS))
    if unit == "year":
        return f"A limit cannot count by the year. The units are {units}."
    return f"There is no unit {unit!r}. The units are {units}."
