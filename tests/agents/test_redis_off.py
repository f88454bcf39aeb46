"""``FUSEBOARD_REDIS_URL=off``: an application starts on a laptop and in CI, without any server."""

import asyncio
import logging

import pytest

import fuseboard
from fuseboard import blocking
from fuseboard.cli.doctor.command import examine
from fuseboard.cli.doctor.findings import Level
from fuseboard.explain.found_configuration import find_configuration
from fuseboard.integrations.idempotency import Rules
from fuseboard.settings import AgentSettings

ENVIRON = {"FUSEBOARD_REDIS_URL": "off"}


def settings(**more):
    return AgentSettings.from_env(ENVIRON | more)


async def test_every_call_passes_however_many_fail():
    async with fuseboard.Agent(settings=settings()) as agent:
        for _ in range(50):
            with pytest.raises(ConnectionError):
                async with agent.call("payments-api"):
                    raise ConnectionError
        async with agent.call("payments-api") as permit, agent.request("acme") as decision:
            assert permit.decision.allowed
            assert decision.allowed
        assert agent.running
        assert agent.ready()
    assert not agent.running
    assert (await agent.admit_request("acme")).allowed


async def test_one_warning_names_the_variable(caplog):
    with caplog.at_level(logging.INFO, logger="fuseboard"):
        async with fuseboard.Agent(settings=settings()) as agent, agent.call("payments-api"):
            pass
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert "FUSEBOARD_REDIS_URL is off" in line.getMessage()


async def test_the_gateway_is_not_asked_even_if_it_is_set():
    # Nothing listens there, and no token is set: both would fail otherwise.
    elsewhere = settings(FUSEBOARD_URL="http://127.0.0.1:1")
    async with fuseboard.Agent(settings=elsewhere) as agent, agent.call("payments-api") as permit:
        assert permit.decision.allowed
        assert agent.ready()


async def test_an_agent_starts_again_on_another_loop():
    agent = fuseboard.Agent(settings=settings())

    async def run():
        async with agent, agent.call("payments-api"):
            return agent.running

    assert await asyncio.to_thread(asyncio.run, run())
    assert await asyncio.to_thread(asyncio.run, run())


def test_blocking_code_passes_too():
    agent = blocking.Agent(settings=settings())
    try:
        with agent.call("payments-api") as permit, agent.request("acme") as decision:
            assert permit.decision.allowed
            assert decision.allowed
    finally:
        agent.stop()


async def test_a_lock_names_the_variable():
    async with fuseboard.Agent(settings=settings()) as agent:
        with pytest.raises(fuseboard.StoreUnavailable, match="FUSEBOARD_REDIS_URL is off"):
            async with agent.lock("nightly"):
                pass


def test_requests_with_a_key_run_without_a_record():
    error = fuseboard.StoreUnavailable("FUSEBOARD_REDIS_URL is off")
    assert Rules().unavailable(error) is None
    assert Rules().unavailable(fuseboard.StoreUnavailable("refused"))[0] == 503


async def test_the_doctor_and_explain_name_the_variable():
    finding, _ = await examine(ENVIRON)
    assert finding.level is Level.WARN
    assert "FUSEBOARD_REDIS_URL is off" in finding.says
    with pytest.raises(fuseboard.Misconfigured, match="FUSEBOARD_REDIS_URL is off"):
        await find_configuration(settings())


def test_an_unset_variable_names_the_value():
    with pytest.raises(fuseboard.Misconfigured, match="or be 'off' to limit nothing on a laptop or in CI"):
        AgentSettings.from_env({})


async def test_a_pod_that_starts_without_redis_warns_that_it_decides_alone(tmp_path, caplog):
    unreachable = AgentSettings(redis_url="redis://127.0.0.1:1/0", state_dir=tmp_path)
    with caplog.at_level(logging.WARNING, logger="fuseboard"):
        async with fuseboard.Agent(settings=unreachable):
            pass
    (line,) = [one.getMessage() for one in caplog.records if one.getMessage().startswith("agent.local")]
    assert line.startswith("agent.local: Redis cannot be reached (never reached: ")
    assert line.endswith("this pod decides alone")
