"""``agent.backlog``. Most processes have no backlog, so its code is loaded on first use."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from fuseboard.admission.admission import Admission
from fuseboard.agent_api.arguments import check_name
from fuseboard.backlog.host import BacklogHost
from fuseboard.contract import keys
from fuseboard.primitives.store_thread import StoreThread
from fuseboard.reporting.seals import Seals
from fuseboard.runtime import Runtime

if TYPE_CHECKING:
    from fuseboard.backlog.options import OptionArguments, Options
    from fuseboard.backlog.queue import Backlog
    from fuseboard.backlog.threads import BlockingBacklog


class BacklogAgent(BacklogHost):
    """An agent with backlogs."""

    backlogs: "Backlogs"

    def backlog(self, dependency: str, **options: "Unpack[OptionArguments]") -> "Backlog":
        """The backlog of a dependency: work that waits until its breaker and its limits admit it.

        All processes that use it should pass the same options; see ``fuseboard.backlog.options.Options``
        and docs/backlog.md. Raises ``Misconfigured``.
        """
        from fuseboard.backlog.options import Options

        return self.backlogs.get(dependency, Options.read(options))


class Backlogs:
    """The backlogs that one agent uses.

    ``present`` returns its present run. It raises ``Misconfigured`` when the agent is not running, and on
    another loop.
    """

    def __init__(
        self, agent: BacklogAgent, thread: StoreThread, environment: str, present: Callable[[], Runtime]
    ) -> None:
        self._agent = agent
        self._thread = thread
        self._channel = keys.backlog_channel(environment)
        self._present = present
        self._known: dict[str, Backlog] = {}
        self._heard_by: Runtime | None = None

    def get(self, dependency: str, options: "Options") -> "Backlog":
        """The one of this dependency. Raises ``Misconfigured`` for other options than before."""
        check_name("a dependency", dependency)
        known = self._known.get(dependency)
        if known is None:
            from fuseboard.backlog.queue import Backlog

            known = Backlog(self._agent, self._thread, self._admission, self._seals, dependency, options)
            self._known[dependency] = known
        else:
            known.options.refuse_others(dependency, options)
        return known

    async def stop(self) -> None:
        """The agent stops: no worker gets a further job."""
        for backlog in self._known.values():
            await backlog.close()

    def _admission(self) -> Admission:
        runtime = self._present()
        if self._heard_by is not runtime:
            self._heard_by = runtime
            runtime.watch.listen(self._channel, self._hint)
        return runtime.admission

    def _seals(self) -> Seals:
        return self._present().seals

    def _hint(self, message: bytes) -> None:
        backlog = self._known.get(message.decode(errors="replace"))
        if backlog is not None:
            backlog.hint()


class ThreadBacklogs:
    """``agent.backlog``, for an agent that is used from threads."""

    @abstractmethod
    def _started(self) -> BacklogHost: ...

    def backlog(self, dependency: str, **options: "Unpack[OptionArguments]") -> "BlockingBacklog":
        """See ``fuseboard.Agent.backlog``. Blocks."""
        from fuseboard.backlog.options import Options
        from fuseboard.backlog.threads import BlockingBacklog

        return BlockingBacklog(self._started, dependency, Options.read(options))
