"""The answer of this gateway to the others, which ask before they send an alert."""

import msgspec

from controlplane.fleet.status_client import VALID_S
from controlplane.gateway.clock import Clock
from controlplane.gateway.emergency.turns import OncallAnswer, OncallQuestion, is_signed
from controlplane.gateway.emergency.watch import Emergency
from controlplane.gateway.wire import problems

_decode = msgspec.json.Decoder(OncallQuestion).decode


def answer(emergency: Emergency, body: bytes, authorization: bytes, clock: Clock) -> bytes:
    """Raises ``Problem``; looks at nothing before the signature is right."""
    if not is_signed(body, authorization):
        raise problems.unsigned()
    try:
        question = _decode(body)
    except msgspec.ValidationError as error:
        raise problems.invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise problems.malformed(error) from None
    if abs(question.at_us / 1_000_000 - clock.wall()) > VALID_S:
        raise problems.invalid_field("at_us", "It was asked at another time by the clock of the gateway.")
    reported = emergency.reported(question.environment)
    evaluated_s = emergency.quiet_s(question.environment)
    return msgspec.json.encode(OncallAnswer(evaluated_s=evaluated_s, reported=reported))
