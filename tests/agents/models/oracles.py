"""What the scripts should do, written as simply as possible and without sharing code with them."""

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor

from fuseboard.batching.demand import RING_SIZE
from fuseboard.contract.policy import BreakerPolicy, Limit
from fuseboard.contract.words import Algorithm


@dataclass
class Window:
    """A sliding window: how much was spent in which sub-bucket, by number."""

    limit: Limit
    spent: dict[int, int] = field(default_factory=dict)
    head: int = 0
    #: The part of the limit that is decided here, in a ramp; 1 for all of it.
    part: Fraction = Fraction(1)

    @property
    def width(self) -> int:
        return ceil(Fraction(self.limit.window_ms * 1000, RING_SIZE))

    def head_at(self, now: int) -> int:
        return max(self.head, now // self.width)

    def room(self, now: int) -> int:
        oldest = self.head_at(now) - RING_SIZE
        return part_of(self.limit.limit, self.part) - sum(
            amount for number, amount in self.spent.items() if number >= oldest
        )

    def spend(self, now: int, amount: int) -> None:
        self.head = self.head_at(now)
        self.spent[self.head] = self.spent.get(self.head, 0) + amount


@dataclass
class Bucket:
    """GCRA in exact fractions of a microsecond."""

    limit: Limit
    arrival: Fraction = Fraction(0)
    part: Fraction = Fraction(1)
    #: The time of a call, by the pod that spent last. It may have been in a ramp.
    stored_spacing: Fraction = Fraction(1)

    @property
    def spacing(self) -> Fraction:
        return Fraction(self.limit.window_ms * 1000, part_of(self.limit.limit, self.part))

    def owed(self, now: int) -> Fraction:
        return max(self.arrival - now, Fraction(0)) / self.stored_spacing

    def room(self, now: int) -> int:
        return floor(part_of(self.limit.burst, self.part) - self.owed(now))

    def spend(self, now: int, amount: int) -> None:
        """A negative amount is given back."""
        self.arrival = now + max(Fraction(0), self.owed(now) + amount) * self.spacing
        self.stored_spacing = self.spacing


def part_of(whole: int, part: Fraction) -> int:
    """At least one call is decided here."""
    return max(1, floor(whole * part))


def oracle_of(limit: Limit) -> Window | Bucket:
    return Window(limit) if limit.algorithm is Algorithm.SLIDING_WINDOW else Bucket(limit)


@dataclass
class Breaker:
    """The fleet's breaker, as DESIGN has it."""

    policy: BreakerPolicy
    state: str = "closed"
    generation: int = 0
    until: int = 0
    since: int = 0
    attempt: int = 0
    successes: int = 0
    consecutive: int = 0
    permits: dict[str, int] = field(default_factory=dict)
    #: (time, calls, failures, slow) of every report counted in this generation.
    history: list[tuple[int, int, int, int]] = field(default_factory=list)
    #: server -> (last outcome, last failure)
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def move(self, state: str, now: int, until: int = 0) -> None:
        self.state, self.until, self.since = state, until, now
        self.generation = max(self.generation + 1, now)
        self.successes, self.permits = 0, {}
        self.consecutive, self.history, self.seen = 0, [], {}

    def live(self, now: int) -> dict[str, int]:
        return {token: until for token, until in self.permits.items() if until > now}

    def admit(self, count: int, now: int, batch: str) -> tuple[str, int]:
        """The verdict, and how many of ``count`` may go."""
        if self.generation == 0:
            self.move("closed", now)
        if self.state == "open" and now >= self.until:
            self.move("half_open", now)
        if self.state == "open":
            return "open", 0
        if self.state == "closed":
            return "admits", count
        self.permits = self.live(now)
        slots = self.policy.probes - len(self.permits)
        if slots <= 0:
            return "probe_busy", 0
        granted = min(count, slots)
        for number in range(granted):
            self.permits[f"{batch}.{number + 1}"] = now + self.policy.probe_lease_ms * 1000
        return "probes", granted

    def report_closed(self, server: str, ok: int, failure: int, tail: int, now: int) -> str:
        policy = self.policy
        self.history.append((now, ok + failure, failure, 0))
        self.consecutive = tail if ok else self.consecutive + tail
        last_failure = now if failure else self.seen.get(server, (0, 0))[1]
        self.seen[server] = (now, last_failure)
        first_second = now // 1_000_000 - policy.window_s + 1
        counted = self.newest([row for row in self.history if row[0] // 1_000_000 >= first_second])
        calls, failures = sum(row[1] for row in counted), sum(row[2] for row in counted)
        if not failure:
            return "none"
        enough = calls >= policy.minimum_calls
        in_a_row = policy.consecutive_failures and self.consecutive >= policy.consecutive_failures
        if not in_a_row and not (enough and failures * 100 >= policy.failure_percent * calls):
            return "none"
        since = now - policy.window_s * 1_000_000
        active = [times for times in self.seen.values() if times[0] > since]
        failing = [times for times in active if times[1] > since]
        if len(failing) < min(policy.minimum_servers, len(active)):
            return "none"
        self.open(now)
        return "tripped"

    def newest(self, rows: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
        """Those of the newest seconds that have ``window_calls`` calls; all rows without such a window."""
        if not self.policy.window_calls:
            return rows
        for first in sorted({row[0] // 1_000_000 for row in rows}, reverse=True):
            newest = [row for row in rows if row[0] // 1_000_000 >= first]
            if sum(row[1] for row in newest) >= self.policy.window_calls:
                return newest
        return rows

    def renew_probe(self, token: str, now: int) -> None:
        """Its call runs on."""
        if self.permits.get(token, now) > now:
            self.permits[token] = now + self.policy.probe_lease_ms * 1000

    def report_probe(self, token: str, outcome: int, now: int) -> str:
        lease = self.permits.pop(token, None)
        if lease is None or lease <= now or outcome == 0:
            return "none"
        if outcome == 2:
            self.open(now)
            return "reopened"
        self.successes += 1
        if self.successes >= self.policy.successes_to_close:
            self.move("closed", now)
            return "closed"
        return "none"

    def open(self, now: int) -> None:
        first, most = self.policy.open_ms * 1000, self.policy.open_max_ms * 1000
        if self.state == "closed" and now - self.since > 10 * first:
            self.attempt = 0
        length = min(most, first * 2**self.attempt)
        self.attempt += 1
        self.move("open", now, now + length)
