"""The limits of several requests in one demand, so that one script call decides all of them or none."""

from collections.abc import Iterable, Sequence

from fuseboard.batching.demand import Demand, LimitRef, most_in_redis
from fuseboard.batching.probe import Probe
from fuseboard.batching.standing_demand import StandingDemand


class JointDemand(StandingDemand):
    """Several demands of one domain as one. A counter that several of them name is asked for their sum."""

    __slots__ = ("_every", "_probe", "charged", "impossible_place", "places_of")

    def __init__(self, requests: Sequence[Sequence[StandingDemand]]) -> None:
        """``requests`` has the demands of each request."""
        places: dict[bytes, int] = {}
        refs: list[LimitRef] = []
        costs: list[int] = []
        places_of: list[tuple[int, ...]] = []
        for demands in requests:
            mine: dict[int, None] = {}
            for demand in demands:
                for ref, cost in zip(demand.refs, demand.costs, strict=True):
                    place = places.setdefault(ref.key, len(refs))
                    if place == len(refs):
                        refs.append(ref)
                        costs.append(0)
                    costs[place] += cost
                    mine[place] = None
            places_of.append(tuple(mine))
        every = self._every = tuple([demand for demands in requests for demand in demands])
        # The least important of them decides when all are served.
        super().__init__(tuple(refs), tuple(costs), min((demand.priority for demand in every), default=0))
        #: The places in ``refs`` of the limits of each request, from 0.
        self.places_of = tuple(places_of)
        #: The place of a limit that can never admit them.
        self.impossible_place = next(
            (place for place, ref in enumerate(refs) if costs[place] > most_in_redis(ref.limit)), None
        )
        #: The demands that are charged, corrected and given back: those of the requests, because each has
        #: amounts of its own, and all slots together, whose names in Redis follow from the sum.
        charged = [_part_of(demand, slots=False) for demand in every]
        if self.holds_slots:
            charged.append(_part_of(self, slots=True))
        self.charged = tuple([demand for demand in charged if demand.refs])
        self._probe: Probe | None = None

    @property
    def probe(self) -> Probe:
        """Asks for the same without a charge. It is one for all who ask, so that they share a question."""
        if self._probe is None:
            # No limit has such a name. The key has the hash tag of the others.
            self._probe = Probe(self, f"{self.refs[0].key.decode()}:(check)")
        return self._probe

    def would_refuse(self, place: int, calls: int) -> None:
        """Each of the requests that has the limit counts it, under the name that the limit has there."""
        key = self.keys[place]
        for demand in self._every:
            if key in demand.keys:
                demand.would_refuse(demand.keys.index(key), calls)

    def lacking(self, left: tuple[int, ...]) -> set[int]:
        """The places of the limits that have too little ``left``. The one that refused is among them."""
        return {
            place
            for place, (ref, cost, units) in enumerate(zip(self.refs, self.costs, left, strict=True))
            if units < cost and not ref.limit.shadow
        }

    def requests_with(self, places: Iterable[int]) -> frozenset[int]:
        """The requests, numbered from 0, that one of the limits at these places decides."""
        wanted = set(places)
        return frozenset([number for number, mine in enumerate(self.places_of) if wanted.intersection(mine)])


def _part_of(demand: Demand, *, slots: bool) -> Demand:
    """The slots of ``demand``, or all the rest."""
    if not demand.holds_slots:
        return demand
    kept = [pair for pair in zip(demand.refs, demand.costs, strict=True) if pair[0].is_slot is slots]
    return Demand(tuple([ref for ref, _ in kept]), tuple([cost for _, cost in kept]), demand.priority)
