"""A table as a page draws it, read back from the HTML as headings and rows of text."""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html.parser import HTMLParser

#: Elements without an end.
_VOID = frozenset(
    {"area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
#: Controls and drawings are no figures.
_SKIPPED = frozenset({"button", "form", "svg", "select", "template", "script", "dialog"})
_SKIPPED_CLASSES = frozenset({"vh", "pick"})
_THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")


@dataclass
class _Cell:
    colspan: int
    rowspan: int
    value: str | None
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        if self.value is not None:
            return self.value
        text = " ".join("".join(self.parts).split()).replace(" ;", ";").strip("; ")
        return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text


@dataclass
class DrawnRow:
    cells: list[str]
    #: A filter of the page compares these: the words and the kinds of the row.
    name: str
    kinds: list[str]


@dataclass
class DrawnTable:
    headings: list[str]
    rows: list[DrawnRow]
    #: Its filter and order have no prefix in the address.
    main: bool
    #: The server filters, orders and divides it into pages.
    paged: bool
    #: The address of the next page, as the page links to it.
    following: str


def drawn_table(html: str, name: str) -> DrawnTable | None:
    """The first table of the section whose heading has this id."""
    reader = _Reader(name)
    reader.feed(html)
    reader.close()
    return reader.table()


class _Reader(HTMLParser):
    def __init__(self, name: str) -> None:
        super().__init__(convert_charrefs=True)
        self.name = name
        #: Depth below the section, the table, and an element that is left out; 0 is outside.
        self.section = self.inside = self.skipped = 0
        self.found = self.after = self.main = self.paged = self.in_head = False
        self.heads: list[_Cell] = []
        self.rows: list[tuple[dict[str, str], list[_Cell]]] = []
        self.cell: _Cell | None = None
        self.following = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if self.skipped:
            self.skipped += tag not in _VOID
        elif self.inside:
            self._within(tag, given)
        elif tag == "section":
            named = self.name in (given.get("aria-labelledby"), given.get("id"))
            self.section += 1 if self.section or named else 0
        elif tag == "table" and self.section and not self.found:
            self.found, self.inside = True, 1
            self.main, self.paged = "data-main" in given, "data-paged" in given
        elif tag == "a" and self.after and given.get("rel") == "next" and not self.following:
            self.following = given.get("href", "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if self.skipped:
            self.skipped -= 1
        elif self.inside:
            if tag in ("td", "th"):
                self.cell = None
            elif tag == "thead":
                self.in_head = False
            elif tag == "table":
                self.inside, self.after = 0, True
        elif tag == "section" and self.section:
            self.section -= 1
            self.after = self.after and bool(self.section)

    def handle_data(self, data: str) -> None:
        if self.cell is not None and not self.skipped:
            self.cell.parts.append(data)

    def _within(self, tag: str, given: dict[str, str]) -> None:
        hidden = "hidden" in given or _SKIPPED_CLASSES & set(given.get("class", "").split())
        if tag in _SKIPPED or (hidden and tag not in ("tr", *_VOID)):
            self.skipped = 1
        elif tag == "thead":
            self.in_head = True
        elif tag == "tbody":
            self.main = self.main or "data-sortable" in given
        elif tag == "tr" and not self.in_head:
            self.rows.append((given, []))
        elif tag in ("td", "th"):
            self.cell = _Cell(
                colspan=_whole(given.get("colspan", "")),
                rowspan=_whole(given.get("rowspan", "")),
                value=given.get("data-value"),
            )
            row = self.heads if self.in_head else self.rows[-1][1] if self.rows else self.heads
            row.append(self.cell)
        elif tag == "br" and self.cell is not None:
            self.cell.parts.append("; ")
        elif tag == "time" and self.cell is not None and given.get("datetime"):
            self.cell.parts.append(_moment(given["datetime"]))
            self.skipped = 1

    def table(self) -> DrawnTable | None:
        if not self.found:
            return None
        headings = [head.text for head in self.heads for _ in range(head.colspan)]
        kept = [place for place, heading in enumerate(headings) if heading]
        rows = []
        for given, cells in self._filled():
            texts = [*cells, *[""] * (len(headings) - len(cells))]
            rows.append(
                DrawnRow(
                    cells=[texts[place] for place in kept],
                    name=given.get("data-name") or " ".join(texts),
                    kinds=given.get("data-kind", "").split(),
                )
            )
        return DrawnTable([headings[place] for place in kept], rows, self.main, self.paged, self.following)

    def _filled(self) -> list[tuple[dict[str, str], list[str]]]:
        """The rows with cells that span several rows repeated; a row that is one sentence is left out."""
        filled, open_cells = [], dict[int, tuple[int, str]]()
        for given, cells in self.rows:
            if len(cells) == 1 and cells[0].colspan > 1 and not open_cells:
                continue
            row: list[str] = []
            waiting = list(cells)
            while waiting or len(row) in open_cells:
                if len(row) in open_cells:
                    left, text = open_cells.pop(len(row))
                    if left > 1:
                        open_cells[len(row)] = (left - 1, text)
                    row.append(text)
                    continue
                cell = waiting.pop(0)
                if cell.rowspan > 1:
                    open_cells[len(row)] = (cell.rowspan - 1, cell.text)
                row.extend([cell.text] + [""] * (cell.colspan - 1))
            filled.append((given, row))
        return filled


def _whole(text: str) -> int:
    """A span of cells, bounded."""
    return min(max(int(text), 1), 100) if text.isascii() and text.isdigit() and len(text) < 4 else 1


def _moment(text: str) -> str:
    """A time with its date, in UTC, to the second."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
