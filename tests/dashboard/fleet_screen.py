"""The dashboard on an operator's screen, in front of a fleet of real processes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from browsing import becomes, is_live

from fuseboard.contract import keys
from tests.chromium import running_chromium
from tests.faults.field import Field, field
from tests.faults.world import ENVIRONMENT
from tests.waiting import NotInTime
from tools.demo.scenario import TUNING

#: Seconds that a busy machine may take for a heartbeat, an alert and a drawing.
PATIENCE_S = 90.0
FAILING = "fragile"
HEADLINE = "document.querySelector('#verdict h1').innerText"
VERDICT = "document.querySelector('#verdict').innerText"
ALERTS = "document.querySelector('#conditions').innerText"


@dataclass
class Screen:
    """The dashboard on an operator's screen, and the fleet behind it."""

    page: Any
    fleet: Field

    def open(self, path: str) -> None:
        self.page.goto(path)
        is_live(self.page)

    def until(self, script: str) -> None:
        becomes(self.page, script, PATIENCE_S)

    def says(self, where: str, *words: str) -> None:
        """Wait until one drawing has all these words."""
        found = f"{where}.replace(/\\s+/g, ' ')"
        try:
            self.until(" && ".join(f"{found}.includes({word!r})" for word in words))
        except NotInTime as late:
            raise NotInTime(f"{late}; the page says {self.page.evaluate(found)!r}") from None

    def read(self, selector: str) -> str:
        return " ".join(self.page.inner_text(selector).split())

    def pods_fail(self, *dependencies: str) -> None:
        for pod in self.fleet.pods:
            pod.do("fail", dependencies=list(dependencies))

    def transitions(self) -> list[dict[str, str]]:
        """What Redis has noted of the breaker that fails, newest first."""
        with redis.Redis.from_url(self.fleet.valkey.url, decode_responses=True) as limits:
            entries: Any = limits.xrevrange(keys.transitions(ENVIRONMENT, FAILING))
            return [fields for _, fields in entries]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Field]:
    """Two Redis servers, Postgres, gateway, worker, beat, web and three pods, with calls."""
    with field(short=True) as world:
        web = world.processes.by_name["web"]
        world.processes.begin("web")
        world.processes.wait_until_ready(["web"])
        # A busy machine answers late without a fault.
        world.edit("set_tuning", tuning=TUNING | {"store_deadline_us": 50_000})
        # Failures in a row alone open it: successes before the first failure keep the share below.
        world.edit(
            "set_breaker_policy",
            dependency=FAILING,
            breaker={"failure_percent": 100, "consecutive_failures": 5},
            expected_version=None,
        )
        world.load(["t:acme", "d:open-road", f"d:{FAILING}"], 30)
        assert web.alive
        yield world


@pytest.fixture(scope="module")
def fleet_browser() -> Iterator[Any]:
    with running_chromium() as started:
        yield started


@pytest.fixture(scope="module")
def fleet_context(fleet_browser: Any, fleet: Field) -> Iterator[Any]:
    """An admin, logged in by the form."""
    opened = fleet_browser.new_context(
        viewport={"width": 1440, "height": 1000}, base_url=fleet.processes.by_name["web"].url
    )
    opened.set_default_timeout(1000 * PATIENCE_S)
    page = opened.new_page()
    page.goto("/login")
    page.fill("#id_username", "admin")
    page.fill("#id_password", fleet.password)
    page.click("button[type=submit]")
    page.wait_for_selector("header.bar")
    page.close()
    yield opened
    opened.close()


@pytest.fixture
def screen(fleet_context: Any, fleet: Field) -> Iterator[Screen]:
    page = fleet_context.new_page()
    yield Screen(page, fleet)
    page.close()
