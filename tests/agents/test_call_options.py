"""The options of a call are the same however it is made, and wrong ones raise at once."""

import inspect
import pickle
import pydoc
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

import fuseboard
from fuseboard import Agent, Misconfigured, blocking
from fuseboard.agent_api.cross_loop import CrossLoopAgent
from fuseboard.backlog.queue import Backlog
from fuseboard.backlog.threads import BlockingBacklog
from fuseboard.integrations import httpx as for_httpx
from fuseboard.integrations import httpx2 as for_httpx2
from fuseboard.integrations.requests import CallRefused, GuardedAdapter
from fuseboard.settings import AgentSettings
from fuseboard.testing import FakeAgent
from fuseboard.testing.fake_backlog import FakeBacklog
from tests.agents.alone import NOWHERE

#: Every way to make a call, by its name. The agents are not started: wrong options raise before that.
WAYS: dict[str, Callable[..., Any]] = {
    "block": lambda **options: FakeAgent().call("api", **options),
    "decorator": lambda **options: FakeAgent().guard("api", **options),
    "attempts": lambda **options: FakeAgent().retrying("api", **options),
    "decorator with attempts": lambda **options: FakeAgent().retry("api", **options),
    "httpx": lambda **options: for_httpx.GuardedTransport(agent(), dependency="api", **options),
    "httpx2": lambda **options: for_httpx2.GuardedTransport(agent(), dependency="api", **options),
    "blocking httpx": lambda **options: for_httpx.BlockingGuardedTransport(
        threads(), dependency="api", **options
    ),
    "blocking httpx2": lambda **options: for_httpx2.BlockingGuardedTransport(
        threads(), dependency="api", **options
    ),
    "requests": lambda **options: GuardedAdapter(threads(), dependency="api", **options),
}
TRANSPORTS = ["httpx", "httpx2", "blocking httpx", "blocking httpx2", "requests"]


def agent() -> Agent:
    return Agent(settings=AgentSettings(redis_url=NOWHERE, server="shop-1"))


def threads() -> blocking.Agent:
    return blocking.Agent(settings=AgentSettings(redis_url=NOWHERE, server="shop-1"))


@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_option_raises_when_the_call_is_described(way: str):
    with pytest.raises(TypeError, match="'patience'"):
        WAYS[way](patience=3)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_call_takes_a_tier(way: str):
    assert WAYS[way](tier="critical", wait_s=1) is not None


@pytest.mark.parametrize("way", ["decorator", *TRANSPORTS])
def test_a_wrong_tier_raises_before_the_first_call(way: str):
    with pytest.raises(Misconfigured, match="tier must be one of critical, standard, optional, not 'gold'"):
        WAYS[way](tier="gold")


@pytest.mark.parametrize("way", TRANSPORTS)
@pytest.mark.parametrize("wait_s", [-1, True, float("nan")])
def test_a_wrong_wait_raises_before_the_first_call(way: str, wait_s: Any):
    with pytest.raises(Misconfigured, match="wait_s must be"):
        WAYS[way](wait_s=wait_s)


async def test_an_unknown_option_raises_in_threads_and_on_other_loops():
    with threads() as started:
        with pytest.raises(TypeError, match="'patience'"):
            await started.aadmit_call("api", patience=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="'patience'"):
            await started.aadmit_request("acme", patience=3)  # type: ignore[call-arg]
        assert started.late == 0


@pytest.mark.parametrize("kind", [for_httpx.CallRefused, for_httpx2.CallRefused, CallRefused])
def test_a_refused_request_explains_itself_in_its_text(kind: Any):
    decision = agent().allow_unasked(dependency="api")
    assert str(kind(decision, httpx2.Request("GET", "http://vendor"))) == decision.explain()
    assert kind(decision).decision is decision


#: Functions that take options, and one option of each with its default.
LISTED: dict[Callable[..., Any], str] = {
    fuseboard.guard: "retry: bool = False",
    Agent.call: "tier: str | None = None",
    Agent.guard: "spend_quota: bool = False",
    Agent.request: "wait_s: float | None = None",
    Agent.retry: "idempotent: bool | None = None",
    Agent.retrying: "preset: str | None = None",
    Backlog.submit: "priority: int = 5",
    BlockingBacklog.submit: "delay_s: float = 0.0",
    FakeBacklog.submit: "max_tries: int | None = None",
    blocking.Agent.aadmit_call: "cost: int = 1",
    blocking.Agent.acall: "deadline_s: float | None = None",
    blocking.Agent.admit_call: "tenant: str = ''",
    blocking.Agent.admit_request: "subject: fuseboard.subject.Subject = ",
    for_httpx.GuardedTransport: "retry: bool = False",
    GuardedAdapter: "tenant: str | collections.abc.Callable[[], str | None] = ''",
}


@pytest.mark.parametrize("function", LISTED, ids=lambda function: function.__qualname__)
def test_help_lists_the_options_with_their_defaults(function: Callable[..., Any]):
    text = pydoc.plain(pydoc.render_doc(function))
    assert LISTED[function] in text
    assert "Unpack" not in str(inspect.signature(function))


@pytest.mark.parametrize("name", ["admit_call", "admit_request"])
def test_listed_defaults_are_those_that_apply(name: str):
    written = inspect.signature(getattr(Agent, name)).parameters
    for agent in (blocking.Agent, CrossLoopAgent):
        assert dict(inspect.signature(getattr(agent, name)).parameters) == dict(written)


@pytest.mark.parametrize("function", LISTED, ids=lambda function: function.__qualname__)
def test_a_function_that_lists_its_options_stays_the_same_function(function: Callable[..., Any]):
    assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301 - its own bytes
    waits = function.__qualname__ in ("Backlog.submit", "FakeBacklog.submit", "Agent.aadmit_call")
    assert inspect.iscoroutinefunction(function) is waits


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (
            lambda agent: agent.call("api", dead_line_s=3),
            r"call\(\) got .* 'dead_line_s'. Did you mean 'deadline_s'",
        ),
        (
            lambda agent: agent.retrying("api", presets="llm"),
            r"retrying\(\) .* 'presets'. Did you mean 'preset'",
        ),
        (lambda agent: agent.retry("api", presets="llm"), r"retry\(\) .* 'presets'. Did you mean 'preset'"),
        (lambda agent: agent.call("api", neutrals=()), r"call\(\) .* 'neutrals'. Did you mean 'neutral'"),
        (lambda agent: agent.guard("api", neutrals=()), r"guard\(\) .* 'neutrals'. Did you mean 'neutral'"),
        (lambda agent: agent.backlog("api", maxjobs=3), r"backlog\(\) .* 'maxjobs'. Did you mean 'max_jobs'"),
        (lambda agent: agent.guard("api", zzz=3), r"guard\(\) .* 'zzz'. It takes cost, costs, deadline_s"),
    ],
)
def test_a_wrong_option_names_the_function_and_the_nearest_option(
    ask: Callable[[FakeAgent], object], error: str
):
    with pytest.raises(TypeError, match=error):
        ask(FakeAgent())


@pytest.mark.parametrize("make", [FakeAgent, agent])
async def test_a_wrong_argument_of_a_job_names_submit(make: Callable[[], Any]):
    backlog = make().backlog("api")
    with pytest.raises(TypeError, match=r"^submit\(\) got .* 'zzz'. It takes cost, .* priority, tenant$"):
        await backlog.submit(b"", zzz=3)
    with pytest.raises(TypeError, match=r"^submit\(\) got .* 'prority'. Did you mean 'priority'\?$"):
        await backlog.submit(b"", prority=3)
