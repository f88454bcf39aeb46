"""Reads YAML as a stream of events. Tags, anchors, aliases and merging are refused.

Values are whole numbers, true, false and text. Words that YAML would convert (``no``, ``.nan``,
``1e3``, ``0x1f``, dates) stay text, and are refused in place of a number.
"""

import re
from collections.abc import Iterator
from typing import IO, Any

import yaml

from controlplane.editing.plans.plan import MAX_BYTES, Errors
from fuseboard.contract.descriptor_file import MAX_FILE

MAX_DEPTH = 8
MAX_SCALAR = 4_096
#: The path of the text of rules within their domain. Its size has a limit of its own.
_FILE = ("file",)
#: Keys of one mapping, and words of one list. Sections of things have as many entries as a plan has rows.
MAX_ENTRIES = 1_000

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})", re.ASCII)
_NOTHING = frozenset({"", "~", "null", "Null", "NULL"})
_FLAGS = {"true": True, "false": False}

#: Path within the thing -> line.
Lines = dict[tuple[str, ...], int]


class _Stop(Exception):
    """Raised when the rest cannot be read."""


class Limited:
    """A stream that stops with an error when it is too long."""

    def __init__(self, stream: IO[Any], errors: Errors) -> None:
        self._stream, self._errors, self._read = stream, errors, 0

    def read(self, size: int = -1) -> bytes:
        part = self._stream.read(size if size > 0 else 65_536)
        data = part.encode() if isinstance(part, str) else bytes(part)
        self._read += len(data)
        if self._read > MAX_BYTES:
            self._errors.add(0, "", f"The file is larger than {MAX_BYTES // 1024 // 1024} MiB.")
            raise _Stop
        return data


class Nodes:
    """Reads a document whose root is a mapping, one entry of a section at a time."""

    def __init__(self, stream: IO[Any], errors: Errors) -> None:
        self.errors = errors
        # The parser of the safe loader reads events and constructs no objects.
        self._event: Any = yaml.CSafeLoader(Limited(stream, errors)).get_event
        self.line = 0

    def entries(self, sections: frozenset[str]) -> Iterator[tuple[str, str, Any, Lines, int]]:
        """Yield section, name, value, lines within it, line. The name is empty for a whole section."""
        try:
            yield from self._document(sections)
        except _Stop:
            pass
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else self.line
            self.errors.add(line, "", f"This is not valid YAML: {error.problem or error.context}.")
        except (yaml.YAMLError, UnicodeError) as error:
            self.errors.add(self.line, "", f"This is not valid YAML in UTF-8: {str(error).splitlines()[0]}.")

    def _document(self, sections: frozenset[str]) -> Iterator[tuple[str, str, Any, Lines, int]]:
        self._expect(yaml.StreamStartEvent, "")
        start = self._next()
        if isinstance(start, yaml.StreamEndEvent):
            self._stop("The file is empty.")
        if getattr(start, "tags", None):
            self._stop("Remove the directives.")
        if not isinstance(self._next(), yaml.MappingStartEvent):
            self._stop("Begin with a section, such as tenants: or tiers:.")
        seen: set[str] = set()
        while (section := self._key(seen, ())) is not None:
            line = self.line
            if section not in sections:
                lines: Lines = {}
                yield section, "", self._value((section,), lines, 1), lines, line
                continue
            if not isinstance(self._next(), yaml.MappingStartEvent):
                self._stop(f"{section} must be a mapping; an empty one is {{}}.")
            yield section, "", None, {}, line
            names: set[str] = set()
            while (name := self._key(names, (section,))) is not None:
                line, lines = self.line, {}
                value = self._value((), lines, 2)
                yield section, name, value, lines, line
        self._expect(yaml.DocumentEndEvent, "")
        if not isinstance(self._next(), yaml.StreamEndEvent):
            self._stop("The file must contain one document: remove the second ---.")

    def _key(self, seen: set[str], where: tuple[str, ...]) -> str | None:
        event = self._next()
        if type(event) is not yaml.ScalarEvent:
            if type(event) is yaml.MappingEndEvent:
                return None
            self._stop("A key must be a word.")
        key: str = event.value
        if len(key) > MAX_SCALAR:
            self._stop("The key is too long.")
        if key in seen:
            self.errors.add(self.line, ".".join((*where, key)).strip("."), "This key appears twice.")
        seen.add(key)
        return key

    def _value(self, path: tuple[str, ...], lines: Lines, depth: int) -> Any:
        event = self._next()
        lines[path] = self.line
        if type(event) is yaml.ScalarEvent:
            return self._scalar(event, path)
        if depth >= MAX_DEPTH:
            self._stop(f"Nested deeper than {MAX_DEPTH} levels.")
        if isinstance(event, yaml.MappingStartEvent):
            found: dict[str, Any] = {}
            seen: set[str] = set()
            while (key := self._key(seen, path)) is not None:
                if len(seen) > MAX_ENTRIES:
                    self._stop(f"{'.'.join(path) or 'This'} has more than {MAX_ENTRIES:,} keys.")
                found[key] = self._value((*path, key), lines, depth + 1)
            return found
        items: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._stop("A list can contain words only.")
            items.append(self._scalar(event, path))
            if len(items) > MAX_ENTRIES:
                self._stop("The list is too long.")
        return items

    def _scalar(self, event: yaml.ScalarEvent, path: tuple[str, ...]) -> Any:
        text: str = event.value
        most = MAX_FILE if path == _FILE else MAX_SCALAR
        if len(text) > most:
            self._stop(f"The text is longer than {most:,} characters.")
        if not event.implicit[0]:
            return text  # quoted
        if _WHOLE.fullmatch(text):
            return int(text)
        if text in _NOTHING:
            self.errors.add(self.line, ".".join(path), "The value is missing: remove the key, or write ''.")
        return _FLAGS.get(text, text)

    def _next(self) -> Any:
        """The next event. Each line of a file needs some, so this looks at most of them only once."""
        event: Any = self._event()
        if event is None:
            self._stop("The file is incomplete.")
        self.line = event.start_mark.line + 1
        if type(event) is not yaml.MappingEndEvent and isinstance(event, yaml.NodeEvent):
            if event.anchor is not None:
                self._stop("Anchors and aliases are not allowed: write the values.")
            if getattr(event, "tag", None) is not None:
                self._stop("Tags are not allowed: write plain values.")
        return event

    def _expect(self, kind: type[Any], message: str) -> None:
        if not isinstance(self._next(), kind):
            self._stop(message or "This is unexpected here.")

    def _stop(self, message: str) -> Any:
        self.errors.add(self.line, "", message)
        raise _Stop
