"""Dramatiq actors that start only while their dependency admits them.

::

    broker.add_middleware(FuseboardMiddleware(), after=Retries)

    @dramatiq.actor(dependency="payments-api", tenant=lambda order: order["tenant"])
    def charge(order): ...

A refused message is enqueued again with a delay, to run when the refusal ends; its own retries are not
spent. A message that is refused 20 times in a row, or for an hour, fails as ``MessageRefused``. How an actor
ends is reported to the breaker of its dependency. See docs/engines.md.

The new message is in the broker before the old one is acknowledged: a worker that is killed between both
leaves two with the same id, never none.

The middleware stands after ``Retries``: hooks after a message run in reverse order, so it takes back the
retry that ``Retries`` counts next.
"""

from time import monotonic
from typing import Any

import dramatiq
from dramatiq.errors import Retry
from dramatiq.middleware import Middleware, MiddlewareError

from fuseboard import blocking
from fuseboard.contract.portable import Portable
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Refused
from fuseboard.integrations.task_admission import OPTIONS, Refusals, call_options, pause_s, report_end

#: The option of a refused message: how often, and since when.
OPTION = "fuseboard_refusals"


class MessageRefused(Portable, MiddlewareError, Retry):
    """The dependency does not admit the message now. ``delay`` in ms; ``None`` when it was refused too often.

    ``retry_when`` of an actor gets this exception: return ``exception.delay is not None`` for it.
    """

    def __init__(self, decision: Decision, delay: int | None) -> None:
        super().__init__(decision.explain(), delay)
        # The decision stays here: the key that signs refusals must not leave the process.
        self.args = (decision.explain(), delay)
        self.reason = str(decision.reason)
        self.dependency = decision.dependency


class FuseboardMiddleware(Middleware):
    """Adds the options ``dependency``, ``tenant``, ``cost`` and ``tier`` to actors.

    All but ``dependency`` are values, or functions of the message's arguments. Each worker process makes its
    agent from the environment, unless ``agent`` is given: both start after the fork.
    """

    def __init__(self, agent: blocking.Agent | None = None) -> None:
        self._agent = agent if agent is not None else blocking.from_env()
        #: Permits by delivery, not by the id of its message: two copies of a message can run at once.
        self._permits: dict[int, tuple[Permit, float]] = {}

    @property
    def actor_options(self) -> set[str]:
        return {"dependency", *OPTIONS}

    def before_process_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        options = broker.get_actor(message.actor_name).options
        dependency = options.get("dependency", "")
        if not dependency or message.failed:
            return
        try:
            permit = self._agent.admit_call(dependency, **call_options(options, message.args, message.kwargs))
        except Refused as refused:
            raise self._later(message, refused.decision) from None
        except Exception as error:
            # A wrong name or option. Dramatiq logs other errors of a middleware, and runs the actor.
            raise MiddlewareError(f"the message cannot be admitted: {error!r}") from error
        # Refusals in a row: the next retry of the message begins with none.
        message.options.pop(OPTION, None)
        self._permits[id(message)] = (permit, monotonic())

    def _later(self, message: dramatiq.MessageProxy, decision: Decision) -> MessageRefused:
        refusals = Refusals(*message.options.get(OPTION, ())).and_one()
        if refusals.too_many:
            return MessageRefused(decision, None)
        message.options[OPTION] = list(refusals)
        return MessageRefused(decision, int(pause_s(decision) * 1000) + 1)

    def after_process_message(
        self,
        broker: dramatiq.Broker,
        message: dramatiq.MessageProxy,
        *,
        result: Any = None,
        exception: BaseException | None = None,
    ) -> None:
        if isinstance(exception, MessageRefused):
            if exception.delay is not None:
                message.options["retries"] = message.options.get("retries", 0) - 1
            else:
                # The last one: ``Retries`` lets it fail. Callbacks get the options as JSON.
                message.options["max_retries"] = 0
            return
        permit, began = self._permits.pop(id(message), (None, 0.0))
        if permit is not None:
            report_end(self._agent.report, permit, exception, monotonic() - began, again=Retry)

    def after_skip_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        permit, _ = self._permits.pop(id(message), (None, 0.0))
        if permit is not None:
            self._agent.give_back(permit)

    def after_worker_shutdown(self, broker: dramatiq.Broker, worker: dramatiq.Worker) -> None:
        self._agent.stop()
