"""Actors of a service that uses dramatiq. As a program: send the messages of the test."""

import sys
import threading
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage, Middleware, Retries

from fuseboard.integrations.dramatiq import OPTION, FuseboardMiddleware
from tests.engines.work import BROKER, KILLED, kill_once, record


class Nacked(Middleware):
    """Writes down which messages failed for good."""

    def after_nack(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        record("nacked", message.actor_name)


class KilledBroker(RedisBroker):
    """The worker of a refused message ends after the new message is in the broker."""

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        enqueued = super().enqueue(message, delay=delay)
        if OPTION in message.options and delay is not None:
            kill_once()
        return enqueued


if KILLED:
    # Another worker takes over what a dead one has not acknowledged: after 2 s, where the usual time is 60.
    broker: RedisBroker = KilledBroker(url=BROKER, heartbeat_timeout=2000, maintenance_chance=1_000_000)
else:
    broker = RedisBroker(url=BROKER)
broker.add_middleware(FuseboardMiddleware(), after=Retries)
broker.add_middleware(CurrentMessage())
broker.add_middleware(Nacked())
dramatiq.set_broker(broker)


def retries() -> int:
    message = CurrentMessage.get_current_message()
    assert message is not None
    return int(message.options.get("retries", 0))


@dramatiq.actor(dependency="limited", tenant=lambda order: "acme", cost=lambda order: 1, max_retries=1)
def limited(order: int) -> None:
    record("limited", order, retries())


@dramatiq.actor(dependency="steady", max_retries=1, min_backoff=1)
def flaky() -> None:
    if record("flaky", retries()) == 1:
        raise ConnectionError


@dramatiq.actor(dependency="gate", max_retries=1)
def gated(order: int) -> None:
    record("gated", order, retries())


@dramatiq.actor(dependency="failing", max_retries=0)
def failing() -> None:
    raise ConnectionError


@dramatiq.actor
def noted(message: Any, failure: dict[str, str]) -> None:
    record("noted", failure["type"])


@dramatiq.actor(dependency="steady", tenant=lambda: {}["tenant"], max_retries=0)
def mistaken() -> None:
    record("mistaken")


@dramatiq.actor(dependency="never", max_retries=5, on_failure="noted")
def never() -> None:
    record("never")


#: The two copies of a message.
both = threading.Barrier(2)


@dramatiq.actor(dependency="paired", max_retries=0)
def paired(round_: int) -> None:
    both.wait(20)
    record("paired", round_)


def main(*options: str) -> None:
    if "--gated" in options:
        gated.send(7)
        return
    if "--paired" in options:
        # As after a worker that was killed between the new message and the old one.
        message = paired.message(int(options[-1]))
        broker.enqueue(message)
        broker.enqueue(message)
        return
    for number in range(4):
        limited.send(number)
    flaky.send()
    never.send()
    mistaken.send()
    for _ in range(4):
        failing.send()


if __name__ == "__main__":
    main(*sys.argv[1:])
