"""Waiting for a refusal to end, while holding nothing."""

import asyncio
import random
from time import monotonic

from fuseboard.contract.words import Reason
from fuseboard.decision import Decision

#: A slot or a probe may be free long before its lease ends: whoever waits looks this often.
LOOK_AGAIN_S = 0.02


async def waited(decision: Decision, until: float) -> bool:
    """Sleep, holding nothing, until asking again can help; ``False`` when that is too late, or never."""
    wait_s = decision.retry_after_ms / 1000
    if wait_s <= 0:
        return False
    if decision.reason in (Reason.CONCURRENCY, Reason.PROBE_BUSY):
        wait_s = min(wait_s, LOOK_AGAIN_S)
    # A little late and apart from the others: all who wait for one window would come at once.
    wait_s *= random.uniform(1.0, 1.1)
    if monotonic() + wait_s > until:
        return False
    await asyncio.sleep(wait_s)
    return True
