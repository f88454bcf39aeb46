"""A rate limiter of LangChain that asks the agent, so that all pods share one limit.

::

    worker = fuseboard.blocking.from_env()
    model = ChatAnthropic(model_name="claude-sonnet-5", rate_limiter=RateLimiter(worker, dependency="llm"))

LangChain asks it before each call, and reports nothing after it. So it knows neither the outcome nor the
usage: it opens no breaker, holds no slot during the call, and ``costs`` stay as they were estimated. A client
that ``fuseboard.guard`` or a transport guards has all of that: see docs/frameworks.md.
"""

from collections.abc import Mapping
from typing import Unpack

from langchain_core.rate_limiters import BaseRateLimiter

from fuseboard.agent_api.arguments import check_client_options, check_costs
from fuseboard.agent_api.options import CallOptions, ClientOptions, list_options
from fuseboard.blocking import Agent
from fuseboard.contract.words import Outcome
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from fuseboard.integrations.guard import check_agent
from fuseboard.integrations.guarded_request import options_of_attempt

#: LangChain expects its limiters to wait. A wait in the configuration is that of a request, and often 0.
WAIT_S = 60.0


class RateLimiter(BaseRateLimiter):  # type: ignore[misc] # the library is not in the environment of mypy
    """Admits each call of a model as a call to ``dependency``, in threads and on any event loop.

    A call waits for at most ``wait_s`` seconds, 60 by default. If the refusal lasts longer, it raises
    ``Refused``, because LangChain makes the call whatever a limiter returns. ``costs`` are charged for each
    call, by measure.
    """

    @list_options()
    def __init__(
        self,
        agent: Agent,
        *,
        dependency: str,
        costs: Mapping[str, int] | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        check_client_options(type(self).__name__, options)
        check_agent(agent, asynchronous=False)
        if costs is not None:
            check_costs(costs)
        self._agent, self._dependency, self._costs = agent, dependency, costs
        self._options_now = options_of_attempt({"wait_s": WAIT_S, **options})

    def acquire(self, *, blocking: bool = True) -> bool:
        """Whether a call may be made now. With ``blocking``, wait for it, or raise ``Refused``."""
        try:
            self._end(self._agent.admit_call(self._dependency, **self._options(blocking)))
        except Refused:
            if blocking:
                raise
            return False
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """``acquire`` for a coroutine."""
        try:
            self._end(await self._agent.aadmit_call(self._dependency, **self._options(blocking)))
        except Refused:
            if blocking:
                raise
            return False
        return True

    def _options(self, blocking: bool) -> CallOptions:
        options: CallOptions = {**self._options_now(), "costs": self._costs}
        return options if blocking else {**options, "wait_s": 0.0}

    def _end(self, permit: Permit) -> None:
        """The call is charged. Nobody reports how it ends, so it says nothing and keeps no slot."""
        self._agent.report(permit, Outcome.NEUTRAL)
