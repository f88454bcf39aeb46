"""The frame of pages that do not display the fleet: it comes from the hub's last drawing."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError
from django.urls import URLPattern, URLResolver, get_resolver
from fleet_rows import breaker, put_server
from hub_drawing import draw
from shown import text_of

from controlplane.alerts.state.evaluate import evaluate
from controlplane.editing import edits
from controlplane.status.read_facts import read_facts
from dashboard.hub import hub
from dashboard.live.overview import Live, build
from dashboard.live.topics import FLEET_PAGES, PAGES
from tests.dashboard.test_alerts_page import alert
from tests.people import SEED

pytestmark = pytest.mark.django_db(transaction=True)

#: Names by the part of the address before them. Most are of a dependency.
_NAMES = {"servers": "web-1", "of": "standard", "people": "ada"}
#: What stands in other parts of an address.
_EXAMPLES = {
    "slug": "payment-provider-timeouts",
    "kind": "tier",
    "limit": "contract",
    "form": "yaml",
    "number": "1",
    "draft": "00000000-0000-0000-0000-000000000000",
    "token": "unknown",
    "link": "unknown",
}
#: What a page needs in its address to display its content.
_QUERIES = {
    "tenant": "key=acme-retail",
    "effective": "key=acme-retail",
    "edit": "key=pro",
    "bulk": "key=acme-retail",
    "open_selected": "b=payments-api",
    "clear_counter": "tenant=acme-retail&limit=requests",
}


@pytest.fixture
def drawn(production: str, monkeypatch: pytest.MonkeyPatch) -> Live:
    """A drawing that counts as one of now, however slow this machine is."""
    monkeypatch.setattr("dashboard.views.page.FRESH_S", 3600.0)
    return draw(monkeypatch)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes what a page builds: the fleet, or the findings of the rules."""
    found: list[str] = []

    def noting(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
        def note(*given: Any, **more: Any) -> Any:
            found.append(name)
            return made(*given, **more)

        return note

    monkeypatch.setattr("dashboard.views.page.build", noting("fleet", build))
    monkeypatch.setattr("dashboard.live.overview.evaluate", noting("rules", evaluate))
    return found


def addresses() -> Iterator[str]:
    """An address of every page, so that a new page is looked at as well."""
    for route in get_resolver("dashboard.urls").url_patterns:
        if isinstance(route, URLResolver):
            continue  # Pages of a login have no frame.
        assert isinstance(route, URLPattern)
        query = _QUERIES.get(route.name or "", "")
        yield f"/{_path(str(route.pattern))}{'?' if query else ''}{query}"


def _path(pattern: str) -> str:
    def example(found: re.Match[str]) -> str:
        before = found.string[: found.start()].rstrip("/").rpartition("/")[2]
        return _NAMES.get(before, "payments-api") if found[2] == "name" else _EXAMPLES[found[2]]

    return re.sub(r"<(\w+:)?(\w+)>", example, pattern)


def test_only_pages_of_the_fleet_build_it(
    log_in: Any, drawn: Live, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[dict[str, Any]] = []

    def note(_: Any, context: dict[str, Any] | None = None, request: Any = None) -> str:
        rendered.append(context or {})
        return ""

    def build_nothing(*_: Any, **__: Any) -> Live:
        built.append("fleet")
        return drawn

    # What a template draws is in its context: no page has to be drawn, and no fleet built, to see it.
    monkeypatch.setattr("django.template.backends.django.Template.render", note)
    monkeypatch.setattr("dashboard.views.page.build", build_nothing)
    monkeypatch.setattr("dashboard.views.page.read_facts", lambda environment: drawn.facts)
    alert(pk=int(_EXAMPLES["number"]))
    client, shown = log_in("ada"), set()
    for address in (*addresses(), "/account", "/no-such-page"):
        built.clear()
        rendered.clear()
        client.get(address)
        if not rendered or "page" not in rendered[-1]:
            continue  # It takes a form, leads to another page, or is a part of a page.
        page = rendered[-1]["page"]
        shown.add(page)
        assert page in PAGES, f"the socket of {address} is refused"
        assert built == [] or page in FLEET_PAGES, f"{address} builds the fleet"
    assert PAGES - shown == set(), "add an address of this page"


@pytest.mark.parametrize("path", ["/tiers", "/tenant?key=acme-retail"])
def test_a_frame_displays_the_fleet_as_it_was_drawn(
    log_in: Any, production: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    put_server("web-2", state="offline")
    put_server("web-3", mode="drill", breakers=[breaker("payments-api", "open")])
    live = draw(monkeypatch)
    page = text_of(log_in("ada").get(path).content.decode())
    # The drill fires at once. A pod that is silent since now is pending, and so is what no gateway reports.
    assert (live.alert_cards.counts, live.frame.alerts) == ("1 firing, 3 pending", 1)
    assert "1 firing" in page
    assert "3 pods, 1 silent" in page
    assert "fleet as of" not in page


def test_an_edit_shows_in_the_frame_before_the_hub_has_drawn_again(
    log_in: Any, production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_facts(production).revision
    for name in ("web-1", "web-2", "web-3"):
        put_server(name, revision=before)
    draw(monkeypatch)
    client = log_in("ada")
    assert f"revision {before} on 3 of 3" in text_of(client.get("/tiers").content.decode())
    edits.create_tenant(
        environment="production", tenant="globex", tier="pro", reason="for a test", actor=SEED
    )
    page = text_of(client.get("/tiers").content.decode())
    assert f"revision {before + 1}: reaching pods, 0 of 3" in page, "no pod has applied it yet"


def test_an_old_drawing_says_how_old_it_is(
    log_in: Any, production: str, monkeypatch: pytest.MonkeyPatch, built: list[str]
) -> None:
    live = draw(monkeypatch, ago_s=90)
    built.clear()
    page = text_of(log_in("ada").get("/tiers").content.decode())
    assert "3 pods" in page
    clock = time.strftime("%H:%M:%S", time.gmtime(live.facts.now))
    assert f"fleet as of {clock} UTC" in page
    assert "Postgres is unavailable" not in page, "this page has just read it"
    assert built == []


def test_without_a_drawing_a_page_says_that_pods_are_not_read_yet(
    log_in: Any, monkeypatch: pytest.MonkeyPatch, built: list[str]
) -> None:
    monkeypatch.setattr(hub.of("production"), "live", None)
    page = text_of(log_in("ada").get("/tiers").content.decode())
    assert "Pods: not read yet" in page
    assert "revision " in page
    assert built == []


def test_while_postgres_is_away_the_frame_is_the_last_drawing(
    log_in: Any, production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(monkeypatch, ago_s=10)

    def refuse(environment: str) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("dashboard.views.page.read_environment", refuse)
    page = text_of(log_in("ada").get("/no-such-page").content.decode())
    assert "Postgres is unavailable" in page
    assert "3 pods" in page
