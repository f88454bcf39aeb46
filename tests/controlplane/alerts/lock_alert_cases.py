"""Cases of the rules about locks and permits, as in ``test_alert_rules``."""

from typing import Any

from controlplane.status.facts import Facts
from tests.controlplane.alerts.alert_facts import NOW, facts, pod


def locks(**fields: Any) -> Facts:
    return facts(pod(primitives=fields))


def permits(**counts: int) -> Facts:
    return facts(pod("web-0", permits={"issued": 500, "expired": 10}), pod(permits=counts))


SHARES = "More than 1 % is a warning, more than 10 % is critical."
LOCK_CASES: list[tuple[tuple[str, str], Facts, str, Facts]] = [
    (
        ("lock-held", "warning"),
        locks(holding=1, longest_since=NOW - 301),
        "A lock is in use for long. web-1 has it for 5 min 1 s. Other processes that want it wait, or"
        " give up.",
        locks(holding=1, longest_since=NOW - 300),
    ),
    (
        ("lock-lost", "warning"),
        locks(locks={"acquired": 1, "lost": 1}, once={"begun": 3, "lost": 2}),
        "1 lock and 2 claims of work that must not be done twice are lost. In the last 10 minutes, at web-1."
        " Two processes may have done the same work: check what the blocks have written.",
        locks(locks={"acquired": 1, "taken": 50}),
    ),
    (
        ("lock-failures", "critical"),
        locks(locks={"acquired": 80, "unavailable": 5}, once={"begun": 9, "unavailable": 6}),
        "11 % of locks and claims fail: pods cannot ask Redis. 11 of 100 in the last 10 minutes. This work"
        f" is not done. {SHARES}",
        locks(locks={"acquired": 90, "unavailable": 10}),
    ),
    (
        ("lock-failures", "warning"),
        locks(locks={"acquired": 98, "unavailable": 2}),
        "2 % of locks and claims fail: pods cannot ask Redis. 2 of 100 in the last 10 minutes. This work"
        f" is not done. {SHARES}",
        # Too few attempts say nothing.
        locks(locks={"acquired": 1, "unavailable": 18}),
    ),
    (
        ("permits-unreported", "warning"),
        permits(issued=1_000, expired=60, displaced=20),
        "8 % of the permits of web-1 get no report. 80 of 1,000 in the last 10 minutes. The access log of"
        " Envoy does not arrive, or the application does not report. Breakers do not see how these calls end."
        " More than 5 % is a warning.",
        # Few permits say nothing.
        permits(issued=100, expired=19),
    ),
]
