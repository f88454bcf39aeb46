"""The forms of a page as a browser without scripts has them: what it would send, and what is wrong."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

#: Types of an ``input`` into which nobody types.
_NOT_TYPED = {"hidden", "radio", "checkbox", "submit", "button"}
Sent = dict[str, str | list[str]]


@dataclass
class Control:
    tag: str
    attributes: dict[str, str]
    value: str = ""

    @property
    def name(self) -> str:
        return self.attributes.get("name", "")

    @property
    def id(self) -> str:
        return self.attributes.get("id", "")

    @property
    def kind(self) -> str:
        return self.attributes.get("type", "text") if self.tag == "input" else self.tag

    @property
    def typed(self) -> bool:
        """Whether a person types into it."""
        return self.tag == "textarea" or (self.tag == "input" and self.kind not in _NOT_TYPED)

    @property
    def is_wrong(self) -> bool:
        return "aria-invalid" in self.attributes

    @property
    def sent(self) -> bool:
        if self.kind in ("radio", "checkbox"):
            return "checked" in self.attributes
        return bool(self.name) and self.kind not in ("submit", "button", "file")


@dataclass
class Form:
    attributes: dict[str, str]
    controls: list[Control] = field(default_factory=list)
    #: The buttons that send it: name and value. Enter in a field presses the first.
    buttons: list[tuple[str, str]] = field(default_factory=list)
    #: Buttons of what cannot be undone.
    risks: list[tuple[str, str]] = field(default_factory=list)

    @property
    def posts(self) -> bool:
        return self.attributes.get("method") == "post"

    @property
    def typed(self) -> list[Control]:
        return [one for one in self.controls if one.typed]

    def address(self, page: str) -> str:
        return urljoin(page, self.attributes.get("action", "") or page)

    def sends(self, button: tuple[str, str], typed: Mapping[str, str]) -> Sent:
        """What the browser sends: ``typed`` has the text of controls by their name."""
        found: dict[str, list[str]] = {}
        for one in self.controls:
            if one.sent:
                text = typed.get(one.name, one.value) if one.typed else one.value
                found.setdefault(one.name, []).append(text)
        if button[0]:
            found[button[0]] = [button[1]]
        found.pop("csrfmiddlewaretoken", None)
        return {name: texts[0] if len(texts) == 1 else texts for name, texts in found.items()}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.by_id: dict[str, Form] = {}
        self.errors: dict[str, str] = {}
        #: The ids of what has the focus when the page opens, and of what is wrong, in the order of the page.
        self.focused: list[str] = []
        self.wrong: list[str] = []
        #: Controls outside their form.
        self._beside: list[tuple[str, Control]] = []
        self._form: Form | None = None
        self._text: Control | None = None
        self._select: Control | None = None
        self._error = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._form = Form(given)
            self.forms.append(self._form)
            self.by_id[given.get("id", "")] = self._form
        if "autofocus" in given:
            self.focused.append(given.get("id", "") or given.get("name", ""))
        if "aria-invalid" in given:
            self.wrong.append(given.get("id", "") or given.get("name", ""))
        if tag in ("input", "textarea", "select"):
            control = Control(tag, given, given.get("value", "on" if given.get("type") == "checkbox" else ""))
            self._text = control if tag == "textarea" else self._text
            self._select = control if tag == "select" else self._select
            self._place(given, control)
        elif tag == "option" and self._select is not None:
            if "selected" in given or "first" not in self._select.attributes:
                self._select.attributes["first"] = ""
                self._select.value = given.get("value", "")
        elif tag == "button" and given.get("type", "submit") == "submit" and self._form:
            button = (given.get("name", ""), given.get("value", ""))
            self._form.buttons.append(button)
            if "risk" in given.get("class", "").split():
                self._form.risks.append(button)
        if "err" in given.get("class", "").split():
            self._error = given.get("id", "no id")
            self.errors[self._error] = ""

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text.value += data
        if self._error:
            self.errors[self._error] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "textarea":
            self._text = None
        elif tag == "select":
            self._select = None
        elif tag == "p":
            self._error = ""

    def _place(self, given: dict[str, str], control: Control) -> None:
        if "form" in given:
            self._beside.append((given["form"], control))
        elif self._form:
            self._form.controls.append(control)

    def finish(self) -> None:
        for form, control in self._beside:
            if form in self.by_id:
                self.by_id[form].controls.append(control)


@dataclass
class Page:
    forms: list[Form]
    #: Id of a message -> its text.
    errors: dict[str, str]
    focused: list[str]
    wrong: list[str]

    def said_at(self, control: Control) -> str:
        """The message that the control is tied to."""
        names = control.attributes.get("aria-describedby", "").split()
        return " ".join(" ".join(self.errors.get(name, "").split()) for name in names).strip()


def page_of(html: str) -> Page:
    reader = _Reader()
    reader.feed(html)
    reader.finish()
    return Page(reader.forms, reader.errors, reader.focused, reader.wrong)


def forms_to_fill(html: str) -> Iterator[Form]:
    """The forms that make something of what a person types."""
    for form in page_of(html).forms:
        if form.posts and form.typed:
            yield form
