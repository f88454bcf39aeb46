"""The report of a pod about its locks, and about work that must not be done twice.

Totals count since the process started. Only the locks that are held longest are named: a name can be anything
that an application chooses, and a heartbeat is bounded.
"""

from typing import Annotated

from msgspec import Meta, Struct

from fuseboard.contract.failures import Total

#: Locks that a heartbeat names, and the characters of a name that it contains.
MAX_NAMED = 5
NAME_LETTERS = 64
#: A lock that is held for less has no name in a heartbeat: most locks are, and they would change each time.
NAMED_AFTER_S = 1.0
#: A lock that is held for longer is logged and counted once.
LONG_HELD_S = 60.0

#: Upper edges of the histograms of waits and of holds; one more bucket counts the rest.
LOCK_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class LockCounters(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Totals of the locks of one process."""

    acquired: Total = 0
    #: Acquired, but another process or task had the lock first.
    waited: Total = 0
    #: Not acquired: another one had the lock for the whole wait.
    taken: Total = 0
    #: Ended before their blocks did.
    lost: Total = 0
    #: Not acquired: Redis could not be asked.
    unavailable: Total = 0
    #: Not released at the end of the block, because Redis could not be asked.
    unreleased: Total = 0
    #: Held for more than ``LONG_HELD_S``.
    long_held: Total = 0
    #: All waits that ended with the lock, and all blocks.
    waited_ms: Total = 0
    held_ms: Total = 0


class OnceCounters(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Requests with an ``Idempotency-Key``, and blocks of ``agent.once``."""

    #: Began to run here.
    begun: Total = 0
    #: Were done before: they got the first answer, or were skipped.
    replayed: Total = 0
    #: Ran in another process, or another task, at that time (409).
    running: Total = 0
    #: Had the key of another request (422).
    mismatched: Total = 0
    #: Lost their claim before they ended: another run may have begun.
    lost: Total = 0
    #: Did not begin: Redis could not be asked, or its memory was almost full.
    unavailable: Total = 0
    #: Were done before, and no key of the pod opens the answer that is kept.
    unsealed: Total = 0


#: The counts of both that are exported as events of one metric.
LOCK_EVENTS = ("acquired", "waited", "taken", "lost", "unavailable", "unreleased", "long_held")
ONCE_EVENTS = ("begun", "replayed", "running", "mismatched", "lost", "unavailable", "unsealed")


class HeldLock(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    name: Annotated[str, Meta(min_length=1, max_length=NAME_LETTERS)]
    held_ms: Annotated[int, Meta(ge=0, le=10**12)] = 0


class Primitives(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A pod that reports it is new enough, also when it has no lock."""

    locks: LockCounters = LockCounters()
    once: OnceCounters = OnceCounters()
    #: Locks that the process holds now, named or not.
    holding: Total = 0
    #: Milliseconds for which it has had its oldest lock.
    longest_ms: Annotated[int, Meta(ge=0, le=10**12)] = 0
    #: The locks that it has had longest, the longest first.
    held: Annotated[tuple[HeldLock, ...], Meta(max_length=MAX_NAMED)] = ()
