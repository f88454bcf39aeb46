"""A headless browser: logs in, reads pages, and fills in the forms of a page."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

import httpx


class NoSuchForm(LookupError):
    """The page has no such form; the message lists its forms."""


@dataclass
class Form:
    action: str
    method: str
    #: The address of the page with the form.
    page: str = ""
    #: The values in the page: name -> value.
    fields: dict[str, str] = field(default_factory=dict)
    #: Every name a person could fill in or press.
    names: set[str] = field(default_factory=set)


class Browser:
    """One person's session on the dashboard, with cookies."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=10.0, follow_redirects=True, trust_env=False)

    def close(self) -> None:
        self.client.close()

    def log_in(self, name: str, password: str) -> httpx.Response:
        """Fill in the login page; return the page after it."""
        return self.send(self.form("/login", "username", "password"), username=name, password=password)

    def read(self, path: str) -> str:
        """The page at ``path``. Raises ``httpx.HTTPStatusError`` for an error status."""
        return self.client.get(path).raise_for_status().text

    def form(self, path: str, *fields: str, action: str = "") -> Form:
        """Open ``path`` and find its first form that has these fields, and ``action`` in its address."""
        page = self.client.get(path).raise_for_status()
        form = find_form(page.text, set(fields), action=action)
        form.page = str(page.url)
        return form

    def send(self, form: Form, **answers: str) -> httpx.Response:
        """Send a form, filled in; omitted fields keep the values of the page."""
        return self.client.request(
            form.method,
            httpx.URL(form.page).join(form.action),
            data=form.fields | answers,
            headers={"Referer": form.page, "Origin": str(self.client.base_url).rstrip("/")},
        )


def text_of(page: str) -> str:
    """What a page displays, without its markup: one space between any two words."""
    return " ".join(re.sub(r"<[^>]+>", " ", page[max(0, page.find("<main")) :]).split())


def find_form(page: str, names: set[str], *, action: str = "") -> Form:
    """The first form on the page that has these fields, and ``action`` in its address."""
    reader = _FormReader()
    reader.feed(page)
    for form in reader.forms:
        if names <= form.names and action in form.action:
            return form
    seen = "; ".join(f"{form.action or '.'}: {', '.join(sorted(form.names))}" for form in reader.forms)
    raise NoSuchForm(f"No form {action!r} with {', '.join(sorted(names))}; the page has: {seen or 'none'}")


class _FormReader(HTMLParser):
    """Collects the forms of a page with their fields and what is filled in."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self._form: Form | None = None
        self._select = ""
        self._textarea = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "form":
            # htmx forms may have their address only in hx-post.
            action = attributes.get("action") or attributes.get("hx-post") or ""
            method = attributes.get("method") or ("post" if "hx-post" in attributes else "get")
            self._form = Form(action=action, method=method.upper())
            self.forms.append(self._form)
        elif self._form is not None:
            self._field(tag, attributes, self._form)

    def _field(self, tag: str, attributes: dict[str, str | None], form: Form) -> None:
        name, value = attributes.get("name") or "", attributes.get("value") or ""
        if tag == "option" and self._select:
            if "selected" in attributes or self._select not in form.fields:
                form.fields[self._select] = value
            return
        if not name:
            return
        form.names.add(name)
        if tag == "select":
            self._select = name
        elif tag == "textarea":
            self._textarea = name
            form.fields[name] = ""
        elif tag == "input":
            kind = attributes.get("type") or "text"
            if kind in ("radio", "checkbox") and "checked" not in attributes:
                return
            if kind not in ("submit", "button"):
                form.fields[name] = value

    def handle_data(self, data: str) -> None:
        if self._textarea and self._form is not None:
            self._form.fields[self._textarea] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None
        elif tag == "select":
            self._select = ""
        elif tag == "textarea":
            self._textarea = ""
