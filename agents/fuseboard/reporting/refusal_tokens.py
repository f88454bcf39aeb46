"""The tokens of this pod's refusals. Any thread can ask for one."""

import random
import time
from collections.abc import Callable

from msgspec import Struct

from fuseboard.contract.refusal_token import RefusalKey, TokenContent, make_token
from fuseboard.decision import Decision


class RefusalTokens(Struct, dict=True):
    """Signs with the key of the last heartbeat. Without one, there are no tokens.

    A pod that gets no answers keeps its key: the control plane accepts it for some days. A struct without
    fields, so that an application can still compare, copy and encode decisions, and sees no key in them.
    """

    def __post_init__(self) -> None:
        self._now_us: Callable[[], int] = lambda: time.time_ns() // 1000
        self._key: RefusalKey | None = None
        self._page = ""

    def use_clock(self, now_us: Callable[[], int]) -> None:
        """Use the clock of the control plane."""
        self._now_us = now_us

    def take(self, key: RefusalKey | None, page: str = "") -> None:
        """The key, and the page that explains its tokens.

        A control plane of an earlier release sends no key: then the last one remains.
        """
        if key is not None:
            self._key, self._page = key, page

    def explain_url(self, token: str) -> str:
        """The token is the fragment: browsers do not send it, so that no proxy logs it."""
        return f"{self._page}#{token}" if self._page else ""

    def sign(self, decision: Decision) -> str:
        """A new token; empty without a key. Costs a few microseconds, so it is made only for an answer."""
        key = self._key
        if key is None:
            return ""
        refused = TokenContent(
            at_ms=self._now_us() // 1000,
            number=random.getrandbits(24),
            revision=decision.revision,
            reason=decision.reason,
            mode=decision.mode,
            rule=decision.rule,
            dependency=decision.dependency,
            tenant=decision.tenant,
            server=decision.server,
            retry_after_ms=decision.retry_after_ms,
        )
        return make_token(key, refused)
