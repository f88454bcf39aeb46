"""Actors of a service that uses dramatiq. As a program: send the messages of the test."""

from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage, Middleware, Retries

from fuseboard.integrations.dramatiq import FuseboardMiddleware
from tests.engines.work import BROKER, record


class Nacked(Middleware):
    """Writes down which messages failed for good."""

    def after_nack(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        record("nacked", message.actor_name)


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


if __name__ == "__main__":
    for number in range(4):
        limited.send(number)
    flaky.send()
    never.send()
    mistaken.send()
    for _ in range(4):
        failing.send()
