"""The numbers that vendors state for limits, as far as pods agree on them, and those that pods follow."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.fleet.models import Server, ServerState

#: Rows of pods that are read.
MAX_PODS = 2_000
_HEARD = (ServerState.ONLINE, ServerState.LATE)


@dataclass(frozen=True)
class Stated:
    #: The vendor's number, for the window of the limit.
    number: int
    #: The pods to which the vendor has stated it, and those to which it has stated any number.
    pods: int
    of: int


def stated_limits(environment: str) -> dict[tuple[str, str], Stated]:
    """Dependency and limit -> the number that most pods report.

    At least two pods and half of them must report it, unless only one has heard any: one pod that lies, or
    that uses another key, changes nothing.
    """
    heard: dict[tuple[str, str], Counter[int]] = {}
    for dependency, limit, number, _ in _seen(environment):
        if number:
            heard.setdefault((dependency, limit), Counter())[number] += 1
    found = {}
    for key, numbers in heard.items():
        number, pods = min(numbers.items(), key=lambda item: (-item[1], item[0]))
        of = numbers.total()
        if of == 1 or (pods >= 2 and 2 * pods >= of):
            found[key] = Stated(number, pods, of)
    return found


def followed_limits(environment: str) -> dict[tuple[str, str], int]:
    """Dependency and limit -> the lowest number that a pod applies instead of the configured one."""
    lowest: dict[tuple[str, str], int] = {}
    for dependency, limit, _, followed in _seen(environment):
        if followed:
            key = dependency, limit
            lowest[key] = min(followed, lowest.get(key, followed))
    return lowest


def _seen(environment: str) -> Iterator[tuple[str, str, int, int]]:
    rows = Server.objects.filter(environment=environment, state__in=_HEARD).exclude(seen=[])
    for seen in rows.values_list("seen", flat=True)[:MAX_PODS]:
        # A pod that names a limit twice has one vote.
        yield from {(row[0], row[1]): row for row in seen}.values()
