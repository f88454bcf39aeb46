"""Overrides that hold breakers open while Postgres and Redis are down, in this process's memory only.

They are served with the configuration until their time, or until Postgres is back and has them.
"""

from collections.abc import Iterable

import msgspec

from controlplane.breakers.override_in_gateways import LONGEST, HandedOverride, is_signed
from controlplane.gateway.answers.configuration import Configuration
from controlplane.gateway.clock import Clock
from controlplane.gateway.wire import problems
from controlplane.gateway.wire.texts import cleaned
from controlplane.validation import printable
from fuseboard.contract.policy import Override
from fuseboard.contract.words import OverrideMode

#: Not yet adopted; people make them by hand.
MAX_OVERRIDES = 500

#: Above every revision that an earlier override through Redis alone can have used: an earlier
#: reset must not end a later override.
LATER = 1_000_000

_decode = msgspec.json.Decoder(HandedOverride).decode


def read_handed_override(body: bytes, authorization: bytes) -> HandedOverride:
    """An override of a web process. Raises ``Problem``; looks at nothing before the signature is right."""
    if not is_signed(body, authorization):
        raise problems.unsigned()
    hold = problems.decoded(_decode, body)
    clean: HandedOverride = cleaned(hold)
    # A reason may have several lines.
    return msgspec.structs.replace(clean, reason=printable(hold.reason, lines=True))


class HandedOverrides:
    """In the order they came: the last of a breaker counts, all of them go to the audit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, HandedOverride] = {}
        #: Adopted, by id, until they are too old to be sent again.
        self._adopted: dict[str, int] = {}

    @property
    def waiting(self) -> list[HandedOverride]:
        """The overrides that Postgres does not have yet, oldest first, with those that have expired."""
        return list(self._waiting.values())

    def take(self, hold: HandedOverride, configuration: Configuration) -> None:
        """Raises ``Problem``. The same hold again changes nothing."""
        if hold.id in self._waiting or hold.id in self._adopted:
            return
        now_us = self._now_us()
        longest_us = int(LONGEST.total_seconds() * 1_000_000)
        if hold.expires_at_us <= now_us:
            raise problems.invalid_field("expires_at_us", "It is over by the clock of the gateway.")
        if not configuration.knows(hold.dependency):
            raise problems.invalid_field("dependency", "There is no such dependency.")
        if len(self._waiting) >= MAX_OVERRIDES:
            raise problems.not_ready("Too many holds wait for Postgres.")
        # A clock that differs by seconds must not cost the hold.
        ends_us = min(hold.expires_at_us, now_us + longest_us)
        self._waiting[hold.id] = msgspec.structs.replace(hold, expires_at_us=ends_us)

    def settle(self, ids: Iterable[str]) -> None:
        """Postgres has these."""
        for hold_id in ids:
            hold = self._waiting.pop(hold_id, None)
            if hold is not None:
                self._adopted[hold_id] = hold.expires_at_us
        now_us = self._now_us()
        self._adopted = {name: ends_us for name, ends_us in self._adopted.items() if ends_us > now_us}

    def serve(self, configurations: Iterable[Configuration]) -> None:
        """Have every configuration say what is held now."""
        now_us = self._now_us()
        for configuration in configurations:
            configuration.hold(
                {
                    hold.dependency: Override(
                        mode=OverrideMode.FORCED_OPEN,
                        revision=configuration.head.revision + LATER,
                        expires_at_us=hold.expires_at_us,
                        reason=hold.reason,
                        actor=hold.actor,
                    )
                    for hold in self._waiting.values()
                    if hold.environment == configuration.environment and hold.expires_at_us > now_us
                }
            )

    def _now_us(self) -> int:
        return int(self._clock.wall() * 1_000_000)
