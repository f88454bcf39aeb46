"""A question that charges nothing: what is left of some limits?"""

from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm

#: A probe asks for 2 of this limit, so Redis refuses every probe. A refused question charges nothing. The
#: limit with the longest wait refuses: the wait of 1 ms is shorter than that of nearly every spent limit.
_NEVER = Limit(name="never", limit=1, window_ms=1, algorithm=Algorithm.TOKEN_BUCKET)


class Probe(Demand):
    """Asks for what another demand asks for, and is never granted."""

    __slots__ = ()

    only_asks = True

    def __init__(self, demand: Demand, unused_key: str) -> None:
        """``unused_key`` is a key that no limit has, with the hash tag of the demand's keys."""
        refs = (*demand.refs, LimitRef(_NEVER, unused_key))
        super().__init__(refs, (*demand.costs, 2), demand.priority)
