"""An adapter that guards one dependency in a ``requests`` session.

::

    session.mount("https://payments.example.com", GuardedAdapter(agent, dependency="payments-api"))

A refused request raises ``CallRefused``, which is both ``fuseboard.Refused`` and
``requests.ConnectionError``. Outcomes are those of ``fuseboard.integrations.httpx``, decided when the
headers have arrived: a body that breaks off later is not counted. Redirects are separate calls.
"""

from time import monotonic
from typing import Any

import requests
from requests.adapters import BaseAdapter, HTTPAdapter

from fuseboard.agent_api.arguments import check_wait
from fuseboard.blocking import Agent
from fuseboard.calling.outcomes import outcome_of_exception, outcome_of_response
from fuseboard.decision import Decision
from fuseboard.errors import Refused


class CallRefused(Refused, requests.ConnectionError):
    """The request was not sent. ``decision`` says why, and when to try again."""

    def __init__(self, decision: Decision, request: requests.PreparedRequest) -> None:
        requests.ConnectionError.__init__(self, decision.explain(), request=request)
        self.decision = decision


class GuardedAdapter(BaseAdapter):
    """With a ``tenant``, that tenant's quotas on the dependency apply too.

    If a request would be refused, it waits, provided that the refusal ends within ``wait_s`` seconds.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        dependency: str,
        tenant: str = "",
        adapter: BaseAdapter | None = None,
        wait_s: float | None = None,
    ) -> None:
        super().__init__()
        check_wait(wait_s)
        self._agent, self._dependency, self._tenant, self._wait_s = agent, dependency, tenant, wait_s
        self._adapter = adapter if adapter is not None else HTTPAdapter()

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: dict[str, str] | None = None,
    ) -> requests.Response:
        try:
            permit = self._agent.admit_call(self._dependency, tenant=self._tenant, wait_s=self._wait_s)
        except Refused as refused:
            raise CallRefused(refused.decision, request) from None
        if timeout is None:
            timeout = permit.timeout_s
        started = monotonic()
        try:
            response = self._adapter.send(
                request, stream=stream, timeout=timeout, verify=verify, cert=cert, proxies=proxies
            )
        except BaseException as error:
            self._agent.report(permit, outcome_of_exception(error))
            raise
        outcome, cooldown_ms = outcome_of_response(response.status_code, response.headers)
        self._agent.report(permit, outcome, monotonic() - started, cooldown_ms=cooldown_ms)
        return response

    def close(self) -> None:
        self._adapter.close()
