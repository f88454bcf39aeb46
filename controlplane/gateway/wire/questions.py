"""Reads the questions of web processes and of other gateways."""

import msgspec

from controlplane.fleet.status_client import VALID_S, StatusQuestion
from controlplane.gateway.clock import Clock
from controlplane.gateway.wire import problems

_decode = msgspec.json.Decoder(StatusQuestion).decode


def read_question(body: bytes, clock: Clock, *, signed: bool) -> str:
    """The environment asked for. Raises ``Problem``; reads nothing of a body that is not signed."""
    if not signed:
        raise problems.unsigned()
    question = problems.decoded(_decode, body)
    if abs(question.at_us / 1_000_000 - clock.wall()) > VALID_S:
        raise problems.invalid_field("at_us", "It was asked at another time by the clock of the gateway.")
    return question.environment
