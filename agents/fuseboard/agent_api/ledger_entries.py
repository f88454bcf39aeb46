"""The usage of charges without a guarded call, as the ledger of costs has it."""

from collections.abc import Mapping

from fuseboard.contract.budgets import MICRO_USD
from fuseboard.contract.models import Price, micro_usd
from fuseboard.reporting.usage_tallies import Used

_TOKENS = ("tokens", "input_tokens", "output_tokens", "fresh_tokens", "cached_tokens", "written_tokens")


def ledger_entry(amounts: Mapping[str, int], price: Price | None, *, calls: int, batch: bool) -> Used | None:
    """The entry for amounts by measure; ``None`` if they name neither tokens nor money.

    Their money is by the ``price``, for a batch by its lower one. Without money, the calls are unpriced.
    """
    if not any(amounts.get(measure) for measure in (*_TOKENS, MICRO_USD)):
        return None
    cached, written, output = (amounts.get(f"{name}_tokens", 0) for name in ("cached", "written", "output"))
    read = amounts.get("input_tokens", amounts.get("tokens", 0) - output)
    fresh = max(0, amounts.get("fresh_tokens", read - cached - written))
    cost = amounts.get(MICRO_USD)
    saved = 0
    if price is not None and cost is not None and (cached or written):
        saved = micro_usd(price, fresh=fresh + cached + written, output=output, batch=batch) - cost
    return Used(
        calls=calls,
        fresh=fresh,
        cached=cached,
        written=written,
        output=output,
        micro_usd=cost or 0,
        unpriced=calls if cost is None else 0,
        saved_micro_usd=saved,
    )
