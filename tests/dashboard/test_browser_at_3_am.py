"""A drill of a night: one fault after the other on real processes, and what the first page says about each.

The page stays open from the first fault to the last, as it does on the screen of a person on call.
"""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from fleet_screen import FAILING, HEADLINE, VERDICT, Screen

pytestmark = pytest.mark.browser
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fault:
    what: str
    begin: Callable[[], object]
    end: Callable[[], object]
    #: A pattern of what the headline says while it lasts, and what the sentence below does not say.
    headline: str
    untrue: tuple[str, ...]


def faults(screen: Screen) -> Iterator[Fault]:
    fleet = screen.fleet
    gateway = fleet.processes.by_name["gateway"].popen
    assert gateway is not None
    yield Fault(
        "every call to the vendor fails",
        lambda: screen.pods_fail(FAILING),
        screen.pods_fail,
        f"{FAILING} is open",
        ("All healthy", f"All {len(fleet.pods)} breakers are closed"),
    )
    yield Fault(
        "Redis is frozen",
        fleet.freeze,
        fleet.thaw,
        # A pod with few calls asks again for each of them, and decides those that time out.
        "Every pod uses local limits|100 % of requests to Redis fail",
        ("All healthy", "Limits are exact", "3 of 3 pods use shared limits"),
    )
    yield Fault(
        "pod-2 is stopped",
        fleet.pods[1].freeze,
        fleet.pods[1].go_on,
        "pod-2 is silent",
        ("All healthy", "Limits are exact", "3 of 3 pods use shared limits"),
    )
    yield Fault(
        "the gateway is stopped",
        lambda: gateway.send_signal(signal.SIGSTOP),
        lambda: gateway.send_signal(signal.SIGCONT),
        "No gateway is reporting",
        ("All healthy", "pods use shared limits", "Limits are exact"),
    )


@contextmanager
def lasting(fault: Fault) -> Iterator[None]:
    fault.begin()
    try:
        yield
    finally:
        fault.end()


def test_the_first_page_names_each_fault_and_forgets_it_when_it_ends(screen: Screen) -> None:
    screen.open("/")
    screen.says(VERDICT, "3 of 3 pods use shared limits")
    screen.page.evaluate("window.watched = true")
    for fault in faults(screen):
        with lasting(fault):
            screen.until(f"/{fault.headline}/.test({HEADLINE}.replace(/\\s+/g, ' '))")
            said = screen.read("#verdict")
            logger.info("%s | %s", fault.what, said)
            assert not [words for words in fault.untrue if words in said], said
        screen.until(f"!/{fault.headline}/.test({HEADLINE}.replace(/\\s+/g, ' '))")
        screen.says(VERDICT, "3 of 3 pods use shared limits")
        logger.info("%s, ended | %s", fault.what, screen.read("#verdict"))
    assert screen.page.evaluate("window.watched"), "the page was loaded again"
