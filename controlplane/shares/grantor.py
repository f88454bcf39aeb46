"""How one gateway assigns reserved shares: what it heard, what it watched, what it may promise.

``decide`` works on the rows of one environment while their lock is held, and changes them. Only
after they are written is ``commit`` called, and only then is anything promised. Both yield now and
then: 10,000 rows take a tenth of a second, and heartbeats are answered in between. The shares never
add up to more than the whole, whatever pods, gateways and networks do:

* a share has one owner: cells never overlap, and Postgres keeps the rows;
* a promise ends ``lease_s`` after the *beginning* of the transaction that renewed its row, and pods
  count from the moment they asked. So a pod stops before any gateway that saw the row unchanged for
  that long may assign the share to another pod;
* a pod agrees to a smaller share: until it does, the whole share stays assigned to it;
* between two owners a share rests until what the first has spent left every window.
"""

from collections.abc import Callable, Generator, Iterator

from controlplane.shares.assignment_round import Heartbeat, Holder, Promise, Round, Row
from controlplane.shares.cells import CHUNK, Cell, FreeCells, freed, level_for
from fuseboard.contract.shares import MAX_LEVEL, HeldShare

#: How much slower than ours the clock of a pod or of another gateway may run.
DRIFT = 1.02
DRIFT_MS = 1_000
#: A pod that sent nothing for this long is left to other gateways.
STALE_S = 60.0
#: A share is renewed when this part of its lease has passed.
RENEW_AFTER = 0.25


class Grantor:
    """The shares of one environment, as one gateway process assigns them."""

    def __init__(self) -> None:
        self.promises: dict[Holder, Promise] = {}
        self._heard: dict[Holder, Heartbeat] = {}
        #: Whether a pod waits for a share, or for another pod to give up a part of one.
        self._unsettled = False
        #: When this gateway last saw a new pod, on its own clock.
        self._last_came = float("-inf")
        #: Row -> its content, and since when this process has seen that content.
        self._watched: dict[int, tuple[tuple[int, int, str], float]] = {}

    def record(self, server: str, boot: str, *, share: HeldShare | None, leaving: bool, now: float) -> None:
        """Note a heartbeat; cheap, because it runs for every heartbeat."""
        self._heard[server, boot] = Heartbeat(now, share, leaving)

    def wants_a_look(self, now: float, lease_s: float) -> bool:
        """Whether to look at the rows before the next regular time."""
        if self._unsettled:
            return True
        soon = now + lease_s / 2
        for holder, heard in self._heard.items():
            promise = self.promises.get(holder)
            if promise is None or heard.leaving or promise.until < soon:
                return True
        return False

    def begin(self, rows: list[Row], *, begun: float) -> Round:
        """Start a round on these rows, read after ``begun``. What is heard from now on counts in the next
        round.
        """
        round_ = Round(begun=begun, rows=rows, heard=self._heard)
        self._heard = {}
        return round_

    def decide(
        self,
        round_: Round,
        *,
        seen: float,
        lease_s: float,
        rest_s: float,
        new_terms: Callable[[], int],
    ) -> Iterator[None]:
        """Decide what happens to the rows, which were read before ``seen``."""
        begun, lease_ms, rest_ms = round_.begun, int(lease_s * 1000), int(rest_s * 1000)
        yield from self._watch(round_, seen)
        by_holder = {row.holder: row for row in round_.rows if not row.resting}
        yield
        recent = {h: beat for h, beat in round_.heard.items() if begun - beat.at < STALE_S}
        for number, (holder, heard) in enumerate(recent.items()):
            if number % CHUNK == 0:
                yield
            if (row := by_holder.get(holder)) is not None:
                self._answer(round_, row, heard, begun, lease_ms, rest_ms)
        yield from self._take_back(round_, begun)
        waiting = [h for h, heard in recent.items() if h not in by_holder and not heard.leaving]
        yield
        yield from self._spread(round_, waiting, lease_ms, rest_ms, new_terms)

    def commit(self, round_: Round, lease_s: float) -> Iterator[None]:
        """The rows are written: promise what they say."""
        promises = {}
        for number, row in enumerate(round_.rows):
            if number % CHUNK == 0:
                yield
            if row.resting:
                continue
            known = self.promises.get(row.holder)
            until = round_.begun + lease_s if row.holder in round_.renewed else known.until if known else 0.0
            if until > round_.begun:
                cell = row.cell.shrunk(row.offered)
                promises[row.holder] = Promise(cell.level, cell.place, row.terms, until)
        self.promises = promises

    def abandon(self, round_: Round) -> None:
        """Nothing was written: what was heard counts in the next round, unless something newer was heard
        since.
        """
        self._heard = round_.heard | self._heard

    # The parts of a round

    def _watch(self, round_: Round, seen: float) -> Iterator[None]:
        """Note since when each row has had its present content."""
        watched = {}
        for number, row in enumerate(round_.rows):
            if number % CHUNK == 0:
                yield
            assert row.id is not None  # noqa: S101 - they come from Postgres
            content = (row.renewals, row.terms, row.boot)
            before = self._watched.get(row.id)
            if before is None and not row.resting:
                self._last_came = seen
            watched[row.id] = before if before is not None and before[0] == content else (content, seen)
        self._watched = watched

    def _answer(
        self, round_: Round, row: Row, heard: Heartbeat, now: float, lease_ms: int, rest_ms: int
    ) -> None:
        if heard.leaving and heard.share is None:
            self._let_rest(round_, row, rest_ms)
            return
        share = heard.share
        if row.offered > row.level and share is not None and share.terms == row.terms:
            # The pod spends the smaller share from now on. What it gave up rests first.
            for cell in freed(row.cell, row.offered):
                round_.add(_resting(cell, rest_ms))
            smaller = row.cell.shrunk(row.offered)
            row.level, row.place = smaller
            round_.change(row)
        promise = self.promises.get(row.holder)
        if promise is None or self._due(promise, now, lease_ms / 1000):
            self._renew(round_, row, lease_ms, rest_ms)

    @staticmethod
    def _due(promise: Promise, now: float, lease_s: float) -> bool:
        return promise.until - now < lease_s * (1 - RENEW_AFTER)

    @staticmethod
    def _renew(round_: Round, row: Row, lease_ms: int, rest_ms: int) -> None:
        row.renewals += 1
        # Never less than a longer lease that a pod may still hold.
        row.hold_ms = max(row.hold_ms, held_ms(lease_ms, rest_ms))
        round_.renewed.add(row.holder)
        round_.change(row)

    @staticmethod
    def _let_rest(round_: Round, row: Row, rest_ms: int) -> None:
        row.server = row.boot = ""
        row.offered = row.level
        row.renewals += 1
        row.hold_ms = held_ms(0, rest_ms)
        round_.change(row)

    def _take_back(self, round_: Round, now: float) -> Iterator[None]:
        """Free the shares of pods that stopped long ago: their rows have not changed for long enough."""
        over = []
        for number, row in enumerate(round_.rows):
            if number % CHUNK == 0:
                yield
            if row.id is not None and not round_.is_changed(row):
                _, since = self._watched[row.id]
                if (now - since) * 1000 >= row.hold_ms:
                    over.append(row)
        round_.delete(over)

    def _spread(
        self,
        round_: Round,
        waiting: list[Holder],
        lease_ms: int,
        rest_ms: int,
        new_terms: Callable[[], int],
    ) -> Iterator[None]:
        """Serve the pods that wait. When no new pod has come for a while, let small shares grow.

        Where either fails for lack of room, ask the pods with larger shares to shrink.
        """
        owned = [row for row in round_.rows if not row.resting]
        level = min(MAX_LEVEL, level_for(len(owned) + len(waiting)))
        missing, cramped = 0, False
        if waiting:
            missing = yield from self._serve(
                round_, waiting, len(owned), held_ms(lease_ms, rest_ms), new_terms
            )
        elif (round_.begun - self._last_came) * 1000 >= rest_ms:
            cramped = yield from self._grow(round_, owned, level, new_terms)
        if missing or cramped:
            self._ask_to_shrink(round_, owned, level, new_terms)
        self._unsettled = missing > 0 or any(row.offered > row.level for row in owned)

    def _serve(
        self,
        round_: Round,
        waiting: list[Holder],
        owned: int,
        hold_ms: int,
        new_terms: Callable[[], int],
    ) -> Generator[None, None, int]:
        """Assign a share to each waiting pod; returns how many got none."""
        free = yield from FreeCells.beside(row.cell for row in round_.rows)
        level = self._level_of(waiting, owned, free)
        served = waiting[: free.room_at(level)]
        for number, (server, boot) in enumerate(served):
            if number % CHUNK == 0:
                yield
            cell = free.take(level)
            round_.add(Row(None, server, boot, *cell, cell.level, new_terms(), 0, hold_ms))
            round_.renewed.add((server, boot))
        return len(waiting) - len(served)

    def _grow(
        self, round_: Round, owned: list[Row], level: int, new_terms: Callable[[], int]
    ) -> Generator[None, None, bool]:
        """Enlarge the shares that are smaller than ``level``; returns whether some still are."""
        small = [row for row in owned if row.level > level]
        if not small:
            return False
        free = yield from FreeCells.beside(row.cell for row in round_.rows)
        for number, row in enumerate(small):
            if number % CHUNK == 0:
                yield
            if row.level == row.offered:
                self._enlarge(round_, row, level, free, new_terms)
        return any(row.level > level for row in small)

    @staticmethod
    def _ask_to_shrink(round_: Round, owned: list[Row], level: int, new_terms: Callable[[], int]) -> None:
        """Offer a share of ``level`` to the pods with larger ones. They keep the larger one until they
        agree.
        """
        for row in owned:
            if row.offered < level:
                row.offered, row.terms = level, new_terms()
                round_.change(row)

    @staticmethod
    def _enlarge(round_: Round, row: Row, wanted: int, free: FreeCells, new_terms: Callable[[], int]) -> None:
        """Join it with its other half. Or move it, and let its old cell rest until no pod can spend it."""
        if row.cell.buddy in free:
            free.remove(row.cell.buddy)
            cell = row.cell.parent
        elif free.room_at(wanted):
            cell = free.take(wanted)
            round_.add(Row(None, "", "", row.level, row.place, row.level, 0, 0, row.hold_ms))
        else:
            return
        row.level, row.place = cell
        row.offered, row.terms = row.level, new_terms()
        round_.change(row)

    @staticmethod
    def _level_of(waiting: list[Holder], owned: int, free: FreeCells) -> int:
        """The level for new pods: it leaves as much room again for those that may follow."""
        level = min(MAX_LEVEL, level_for(2 * (owned + len(waiting))))
        while level < MAX_LEVEL and free.room_at(level) < 2 * len(waiting):
            level += 1
        return level


def held_ms(lease_ms: int, rest_ms: int) -> int:
    """How long a row must stay unchanged before its share is free."""
    return int((lease_ms + rest_ms) * DRIFT) + DRIFT_MS


def _resting(cell: Cell, rest_ms: int) -> Row:
    return Row(None, "", "", *cell, cell.level, 0, 0, held_ms(0, rest_ms))
