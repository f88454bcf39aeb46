"""What the token of a refusal costs: its length, and the time to make, to read and to resolve it.

A pod makes one only when it answers a refusal over HTTP. Run it as ``python tools/bench/refusals.py``.
"""

import statistics
import sys
from pathlib import Path
from timeit import timeit

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.stand import Bars, say

from fuseboard.contract.refusal_token import MAX_LENGTH, RefusalKey, TokenContent, make_token, read_token
from fuseboard.contract.words import Mode, Reason
from fuseboard.decision import Decision, LimitStatus
from fuseboard.integrations.problem import refusal
from fuseboard.reporting.refusal_tokens import RefusalTokens

TIMES = 20_000
ROUNDS = 5
TENANTS = 100_000

KEY = RefusalKey(day=20_780, id=b"\1\2\3\4", key=b"k" * 32)
REFUSED = TokenContent(
    at_ms=1_795_426_323_412,
    number=1,
    revision=4_211,
    reason=Reason.QUOTA,
    mode=Mode.SHARED,
    rule="requests",
    tenant="acme",
    server="shop-2",
)


def us_each(work, times=TIMES):
    return statistics.median(timeit(work, number=times) / times * 1e6 for _ in range(ROUNDS))


def main():
    bars, text = Bars(), make_token(KEY, REFUSED)
    token = read_token(text)
    plain = Decision(
        allowed=False,
        reason=Reason.QUOTA,
        rule="requests",
        tenant="acme",
        limits=(LimitStatus(name="requests", limit=600, window_ms=60_000, remaining=0),),
    )
    signer = RefusalTokens()
    signer.take(KEY)
    signed = Decision(**{name: getattr(plain, name) for name in plain.__struct_fields__} | {"signer": signer})
    names = [f"tenant-{number}" for number in range(TENANTS)]
    say(f"length of a token: {len(text)} characters (at most {MAX_LENGTH})")
    say(f"make: {us_each(lambda: make_token(KEY, REFUSED)):.1f} us")
    say(f"read and check the signature: {us_each(lambda: read_token(text).is_signed(KEY.key)):.1f} us")
    without, with_token = us_each(lambda: refusal(plain)), us_each(lambda: refusal(signed))
    say(f"answer of a refusal: {without:.1f} us without, {with_token:.1f} us with a token")
    tried = timeit(lambda: [name for name in names if token.is_tenant(KEY.key, name)], number=1)
    say(f"try {TENANTS} tenants: {tried * 1000:.0f} ms")
    bars.ratio("refusal_token_room", MAX_LENGTH / len(text), 1)
    return bars.status


if __name__ == "__main__":
    sys.exit(main())
