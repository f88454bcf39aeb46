"""Celery tasks that start only while their dependency admits them.

::

    app = Celery("shop", task_cls="fuseboard.integrations.celery:GuardedTask")

    @app.task(dependency="payments-api", tenant=lambda order: order["tenant"])
    def charge(order): ...

A refused task is published again with its priority, to run when the refusal ends; its own retries are not
spent. A task that is refused 20 times in a row, or for an hour, fails as ``fuseboard.Refused``. How a task
ends is reported to the breaker of its dependency. See docs/engines.md.

With ``acks_late``, the new message is published before the old one is acknowledged: a worker that is killed
between both leaves two, never none; with Redis as a broker it can be one. Tasks that are called directly are
not guarded.
"""

import logging
from collections.abc import Callable
from functools import cache
from time import monotonic
from typing import Any

from celery import Task, signals
from celery.exceptions import Ignore, Reject, Retry

from fuseboard import blocking
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Refused
from fuseboard.integrations.task_admission import (
    CAP_S,
    OPTIONS,
    Refusals,
    call_options,
    pause_s,
    report_end,
)

logger = logging.getLogger("fuseboard")

#: The header of a refused task: how often, and since when.
HEADER = "fuseboard_refusals"
#: Redis delivers a message again that waits in a worker for longer than this, by default.
VISIBILITY_S = 3600.0

_given: list[blocking.Agent] = []


def use(agent: blocking.Agent) -> None:
    """Guard tasks with this agent. Without it, each process makes one from its environment."""
    _given[:] = [agent]


def agent() -> blocking.Agent:
    """The agent of this process. It starts on first use, so never in the parent of forked workers."""
    return _given[0] if _given else _from_env()


class GuardedTask(Task):  # type: ignore[type-arg] # the parameters of each task are its own
    """A task with the options ``dependency``, ``tenant``, ``cost`` and ``tier``.

    All but ``dependency`` are values, or functions of the task's arguments.
    """

    abstract = True
    dependency = ""
    tenant: str | Callable[..., str] = ""
    cost: int | Callable[..., int] = 1
    tier: str | Callable[..., str | None] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        # From the class: a function there would become a method here.
        kind = type(self)
        if not kind.dependency:
            return self.run(*args, **kwargs)
        try:
            options = {name: getattr(kind, name) for name in OPTIONS}
            permit = agent().admit_call(kind.dependency, **call_options(options, args, kwargs))
        except Refused as refused:
            raise self._later(refused) from None
        # Refusals in a row: the next retry of the task begins with none.
        (self.request.headers or {}).pop(HEADER, None)
        began = monotonic()
        try:
            result = self.run(*args, **kwargs)
        except BaseException as error:
            self._ended(permit, error, began)
            raise
        self._ended(permit, None, began)
        return result

    def _ended(self, permit: Permit, error: BaseException | None, began: float) -> None:
        elapsed_s = monotonic() - began
        report_end(agent().report, permit, error, elapsed_s, again=Retry, neutral=(Ignore, Reject))

    def _later(self, refused: Refused) -> Exception:
        """The error that ends this run. The message is published again, unless it was refused too often."""
        request = self.request
        headers = dict(request.headers or {})
        refusals = Refusals(*headers.get(HEADER, ())).and_one()
        if refusals.too_many or request.is_eager:
            return refused
        delay_s = self._pause_s(refused.decision)
        again = self.signature_from_request(
            request, retries=request.retries, countdown=delay_s, headers=headers | {HEADER: list(refusals)}
        )
        try:
            again.apply_async()
        except Exception as error:
            if self.acks_late:
                # The broker refused the new copy and still has the original.
                return Reject(str(error), requeue=True)
            # Acknowledged before it ran, so nothing keeps it: its failure is stored, and its errbacks run.
            logger.error("celery.not_published task=%s id=%s: %s", self.name, request.id, error)
            return refused
        return Retry(str(refused), when=delay_s, sig=again)  # type: ignore[arg-type] # a number, as documented

    def _pause_s(self, decision: Decision) -> float:
        options = self.app.conf.broker_transport_options or {}
        return pause_s(decision, min(CAP_S, options.get("visibility_timeout", VISIBILITY_S) / 2))


@cache
def _from_env() -> blocking.Agent:
    return blocking.from_env()


@signals.worker_process_shutdown.connect
def _sign_off(**_: object) -> None:
    """A child process of a worker ends without the functions that Python runs at exit."""
    if _given or _from_env.cache_info().currsize:
        agent().stop()
