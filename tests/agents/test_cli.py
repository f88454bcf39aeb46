"""The command `fuseboard`: problems that doctor finds, and decisions that explain predicts for free."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard import AgentSettings, Refused, Subject, blocking
from fuseboard.cli import main
from fuseboard.cli.doctor.findings import Level, clock_finding
from fuseboard.contract import keys
from fuseboard.contract.policy import BreakerPolicy, Dependency, Limit, Override, TenantRecord, Tier
from fuseboard.contract.words import Algorithm, Dimension, OverrideMode, Period
from tests.agents.gateways import FakeGateway, Reply, gateway_running
from tests.agents.published import publish
from tests.agents.servers import BREAKER, POLICY
from tests.patient_pods import PATIENCE_US
from tests.waiting import wait_until

REQUESTS = Limit(name="requests", limit=10, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
SPEND = Limit(
    name="spend",
    limit=500,
    window_ms=86_400_000,
    algorithm=Algorithm.FIXED_WINDOW,
    period=Period.DAY,
    measure="micro_usd",
)
ORDERS = Limit(name="orders", limit=3, window_ms=1000, burst=3, endpoints=("POST /orders*",))
PER_USER = Limit(name="per-user", limit=5, window_ms=1000, burst=5, per=(Dimension.USER,))
ON_VENDOR = Limit(name="on-vendor", limit=2, window_ms=60_000, burst=2, dependency="payments")
VENDOR = Limit(name="calls", limit=100, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
PER_IP = Limit(name="per-ip", limit=3, window_ms=60_000, burst=3, per=(Dimension.IP,))
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(Tier(name="free", quotas=(REQUESTS, SPEND, ORDERS, PER_USER, ON_VENDOR)),),
    subject_limits=(PER_IP,),
    dependencies=(Dependency(name="payments", vendor_limits=(VENDOR,), breaker=BREAKER),),
)


@pytest.fixture
def environment(
    limits: redis.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> pytest.MonkeyPatch:
    """The environment of a pod; the configuration is published."""
    publish(limits, RULES, revision=42, tenants={"late-payer": TenantRecord(tier="free", suspended=True)})
    for name in list(os.environ):
        if name.startswith("FUSEBOARD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", str(tmp_path / "state"))
    # A machine may pause for longer than a person waits.
    for timeout in (
        "cli.doctor.redis_check.LOGIN_S",
        "cli.doctor.gateway_check.TIMEOUT_S",
        "explain.dry_run.CONNECT_S",
        "explain.explain_call.CONNECT_S",
    ):
        monkeypatch.setattr(f"fuseboard.{timeout}", PATIENCE_US / 1e6)
    monkeypatch.setattr("fuseboard.explain.dry_run.DEADLINE_US", PATIENCE_US)
    return monkeypatch


@pytest.fixture
def agent(environment: pytest.MonkeyPatch, redis_url: str) -> Iterator[blocking.Agent]:
    with blocking.Agent(settings=AgentSettings(redis_url=redis_url, server="shop-1")) as agent:
        yield agent


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*arguments: str) -> Any:
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def contents(limits: redis.Redis) -> dict[bytes, Any]:
    return {key: limits.dump(key) for key in limits.scan_iter()}


class TestExplainATenant:
    def test_it_says_which_limits_bind_what_is_left_and_what_comes_next(self, agent, run, limits):
        agent.admit_request("acme", 4, costs={"micro_usd": 120})
        before = contents(limits)
        _, said = run("explain", "--tenant", "acme", "--costs", "micro_usd=100", "--endpoint", "GET /")
        assert contents(limits) == before
        assert (said["revision"], said["mode"], said["allowed"]) == (42, "shared", True)
        found = {limit["name"]: limit for limit in said["limits"]}
        assert {name: limit["binds"] for name, limit in found.items()} == {
            "requests": True,
            "spend": True,
            "orders": False,
            "per-user": False,
            "on-vendor": False,
        }
        assert (found["requests"]["remaining"], found["spend"]["remaining"]) == (6, 380)
        assert "POST /orders*" in found["orders"]["why_not"]
        assert "--user" in found["per-user"]["why_not"]
        assert "payments" in found["on-vendor"]["why_not"]

    def test_an_address_is_explained_by_its_network(self, agent, run, limits):
        agent.admit_request(None, subject=Subject(ip="[2001:DB8:7:1::1]:443"))
        for address, left in (("2001:db8:7:1::2", 2), ("2001:db8:7:2::2", 3)):
            _, said = run("explain", "--nobody", "--ip", address)
            assert [limit["remaining"] for limit in said["limits"] if limit["name"] == "per-ip"] == [left]

    def test_a_spent_limit_is_named_with_the_time_it_takes(self, agent, run, limits):
        agent.admit_request("acme", 10)
        before = contents(limits)
        code, said = run("explain", "--tenant", "acme")
        assert contents(limits) == before
        assert (code, said["allowed"], said["reason"], said["rule"]) == (0, False, "quota", "requests")
        assert 50_000 < said["retry_after_ms"] <= 66_001
        assert said["limits"][0]["alone"] == "all, counted and reported later; the limit is 10"
        assert not agent.admit_request("acme").allowed

    def test_it_predicts_every_next_decision(self, agent, run):
        for _ in range(12):
            _, said = run("explain", "--tenant", "acme", "--user", "ada", "--endpoint", "POST /orders")
            subject = Subject(user="ada", endpoint="POST /orders")
            decision = agent.admit_request("acme", subject=subject)
            if decision.rule in ("orders", "per-user") or said["rule"] in ("orders", "per-user"):
                continue  # refilled between the two
            assert (decision.allowed, decision.rule) == (said["allowed"], said["rule"])

    def test_the_configured_wait_is_a_fact(self, environment, run, limits):
        (payments,) = RULES.dependencies
        patient = msgspec.structs.replace(
            RULES,
            tiers=(Tier(name="free", wait_ms=2000),),
            dependencies=(msgspec.structs.replace(payments, wait_ms=300),),
        )
        publish(limits, patient, revision=43)
        for arguments, wait_ms in ((("--tenant", "acme"), "2,000"), (("--dependency", "payments"), "300")):
            _, said = run("explain", *arguments)
            assert f"waits          up to {wait_ms} ms, unless the caller sets wait_s" in said["facts"]

    def test_a_suspended_tenant_an_unknown_one_and_a_cost_that_never_fits(self, environment, run):
        _, said = run("explain", "--tenant", "late-payer")
        assert (said["reason"], said["facts"]) == ("suspended", ["tenant         tier free, suspended"])
        _, said = run("explain", "--tenant", "ghost")
        assert "not registered" in said["facts"][0]
        _, said = run("explain", "--tenant", "ghost", "--cost", "11")
        assert (said["allowed"], said["rule"], said["retry_after_ms"]) == (False, "requests", 0)

    @pytest.mark.parametrize("name", ["", "x" * 300, "new\nline"])
    def test_a_name_no_tenant_can_have_counts_as_it_does_in_a_pod(self, agent, run, name: str):
        agent.admit_request(name, 4)
        _, said = run("explain", "--tenant", name)
        assert next(limit["remaining"] for limit in said["limits"] if limit["name"] == "requests") == 6

    def test_a_caller_without_a_tenant(self, agent, run):
        for _ in range(3):
            agent.admit_request(None, subject=Subject(ip="192.0.2.1"))
        _, said = run("explain", "--nobody", "--ip", "192.0.2.1")
        assert (said["allowed"], said["rule"]) == (False, "per-ip")
        _, said = run("explain", "--nobody", "--ip", "192.0.2.2")
        assert (said["allowed"], said["limits"][0]["remaining"]) == (True, 3)


class TestExplainADependency:
    def test_a_breaker_with_its_outcomes_and_the_limits_of_vendor_and_tenant(self, agent, run, limits):
        with agent.call("payments", tenant="acme"):
            pass
        with pytest.raises(TimeoutError), agent.call("payments"):
            raise TimeoutError
        wait_until(lambda: limits.exists(keys.outcomes("production", "payments")))
        wait_until(lambda: run("explain", "--dependency", "payments")[1]["breaker"]["calls"] == 2)
        before = contents(limits)
        _, said = run("explain", "--dependency", "payments", "--for-tenant", "acme")
        assert contents(limits) == before
        assert said["allowed"]
        assert said["breaker"]["state"] == "closed"
        assert (said["breaker"]["failures"], said["breaker"]["consecutive_failures"]) == (1, 1)
        found = {limit["name"]: limit["remaining"] for limit in said["limits"] if limit["binds"]}
        assert found == {"calls": 98, "on-vendor": 1}

    def test_an_open_breaker(self, agent, run, limits):
        for _ in range(BREAKER.consecutive_failures):
            with pytest.raises((TimeoutError, Refused)), agent.call("payments"):
                raise TimeoutError
        wait_until(lambda: run("explain", "--dependency", "payments")[1]["breaker"]["state"] == "open")
        before = contents(limits)
        _, said = run("explain", "--dependency", "payments")
        assert contents(limits) == before
        assert (said["allowed"], said["reason"]) == (False, "breaker_open")
        assert said["breaker"]["cause"] == "consecutive"
        assert 0 < said["breaker"]["opens_for_s"] <= 66
        assert 0 < said["retry_after_ms"] <= 66_001

    def test_a_breaker_with_a_window_of_calls(self, environment, run, limits):
        """Explained are the outcomes that the breaker judges, and how many seconds they took."""
        payments = Dependency(name="payments", breaker=BreakerPolicy(window_s=600, window_calls=20))
        publish(limits, msgspec.structs.replace(RULES, dependencies=(payments,)), revision=43)
        second = int(time.time())
        ring = [second, 4] + [0] * 1800
        for ago, outcomes in ((500, [90, 0, 0]), (200, [15, 1, 2]), (100, [5, 4, 0])):
            at = (second - ago) % 600 * 3 + 2
            ring[at : at + 3] = outcomes
        limits.set(keys.outcomes("production", "payments"), msgspec.msgpack.encode(ring))
        limits.set(keys.breaker("production", "payments"), f"closed {second}000000 0 {second}000000 0 0 new")
        counted = run("explain", "--dependency", "payments")[1]["breaker"]
        assert (counted["calls"], counted["failures"], counted["slow"]) == (20, 5, 2)
        assert 201 <= counted["window_s"] < 300, "since the newest seconds with 20 calls"

    def test_an_override_with_who_and_why(self, environment, run, limits, capsys):
        ends_us = time.time_ns() // 1000 + 600_000_000
        held = Override(
            mode=OverrideMode.FORCED_OPEN,
            revision=43,
            expires_at_us=ends_us,
            reason="the vendor double-charges",
            actor="olga",
        )
        dependency = msgspec.structs.replace(RULES.dependencies[0], override=held)
        publish(limits, msgspec.structs.replace(RULES, dependencies=(dependency,)), revision=43)
        limits.set(keys.override("production", "payments"), f"forced_open {ends_us} 43")
        _, said = run("explain", "--dependency", "payments")
        assert (said["allowed"], said["reason"]) == (False, "forced_open")
        assert (said["override"]["reason"], said["override"]["actor"]) == (
            "the vendor double-charges",
            "olga",
        )
        assert main(["explain", "--dependency", "payments"]) == 0
        assert "forced_open by olga: the vendor double-charges" in capsys.readouterr().out

    def test_a_cooldown_of_an_unregistered_dependency(self, agent, run, limits):
        permit = agent.admit_call("unheard-of")
        agent.report(permit, fuseboard_outcome(), cooldown_ms=60_000)
        wait_until(lambda: limits.exists(keys.cooldown("production", "unheard-of")))
        _, said = run("explain", "--dependency", "unheard-of")
        assert said["reason"] == "cooling_down"
        assert 0 < said["breaker"]["cooling_down_s"] <= 60
        assert "not registered" in said["facts"][0]


class TestExplainTrouble:
    def test_with_redis_gone_it_says_so_from_the_copy_on_disk(
        self, environment, run, limits, redis_url, tmp_path
    ):
        state = tmp_path / "state"
        settings = AgentSettings(redis_url=redis_url, state_dir=state)
        with blocking.Agent(settings=settings) as agent:
            agent.admit_request("acme")
            wait_until(lambda: state.exists() and any(state.iterdir()))
        environment.setenv("FUSEBOARD_REDIS_URL", "redis://127.0.0.1:1/0")
        _, said = run("explain", "--tenant", "acme")
        assert (said["mode"], said["source"], said["revision"]) == ("local", "disk", 42)
        assert any("copy on disk" in note for note in said["notes"])

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["explain", "--tenant", "acme", "--costs", "tokens=many"], "whole numbers"),
            (["explain", "--tenant", "acme", "--cost", "0"], "at least 1"),
            (["explain", "--dependency", "a b"], "1 to 64 letters"),
            (["explain", "--tenant", "acme", "--for-tenant", "other"], "--dependency"),
        ],
    )
    def test_wrong_arguments(self, environment, capsys, arguments: list[str], said: str):
        assert main(arguments) == 2
        assert said in capsys.readouterr().err

    def test_wrong_settings(self, environment, capsys):
        environment.delenv("FUSEBOARD_REDIS_URL")
        assert main(["explain", "--tenant", "acme"]) == 2
        assert "FUSEBOARD_REDIS_URL is not set" in capsys.readouterr().err


def found(said: dict[str, Any]) -> dict[str, str]:
    return {finding["check"]: finding["level"] for finding in said["findings"]}


class TestDoctor:
    @pytest.fixture
    def gateway(self, environment: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
        with gateway_running() as gateway:
            gateway.publish(RULES, revision=42)
            environment.setenv("FUSEBOARD_URL", gateway.url)
            environment.setenv("FUSEBOARD_TOKEN", "fb_sel_secret")
            yield gateway

    def test_all_is_well_and_nothing_is_left_behind(self, gateway, run, limits, redis_url):
        before = contents(limits)
        code, said = run("doctor")
        assert (code, said["ok"]) == (0, True), said
        levels = found(said)
        # Depends on the system: tests/sidecar/test_sidecar_listeners.py tries it.
        levels.pop("open files", None)
        assert set(levels.values()) == {"ok"}
        assert set(levels) == {
            "settings",
            "state directory",
            "redis",
            "redis version",
            "eviction policy",
            "clock of Redis",
            "default user",
            "configuration",
            "scripts",
            "latency",
            "gateway",
            "clock of the gateway",
        }
        # Whoever asks first notes since when the store has been what it is.
        wait_until(lambda: set(contents(limits)) - {keys.incarnation("production").encode()} == set(before))
        assert [beat.leaving for beat in gateway.beats] == [True]
        assert gateway.beats[0].server.startswith("doctor-")

    def test_as_text_every_line_of_trouble_says_what_to_do(self, environment, capsys, redis_url):
        environment.setenv("FUSEBOARD_STATE_DIR", "off")
        assert main(["doctor"]) == 0
        out = capsys.readouterr().out
        assert "warn  gateway" in out
        assert "-> set FUSEBOARD_URL" in out
        assert redis_url not in out  # with its password

    def test_a_refused_token_a_dead_gateway_and_something_else_at_its_address(
        self, gateway, run, environment
    ):
        gateway.always = Reply(status=401)
        code, said = run("doctor")
        assert (code, found(said)["gateway"]) == (1, "fail")
        assert "create_agent_token" in said["findings"][-1]["do"]
        gateway.always = Reply(status=200, body=b"<html>", headers=(("Content-Type", "text/html"),))
        assert found(run("doctor")[1])["gateway"] == "fail"
        environment.setenv("FUSEBOARD_URL", "http://127.0.0.1:1")
        assert found(run("doctor")[1])["gateway"] == "fail"

    def test_no_settings_and_no_redis(self, environment, run):
        environment.setenv("FUSEBOARD_REDIS_URL", "redis://127.0.0.1:1/0")
        code, said = run("doctor")
        assert (code, found(said)["redis"]) == (1, "fail")
        environment.setenv("FUSEBOARD_REDIS_ULR", "redis://x")
        code, said = run("doctor")
        assert (code, found(said)["settings"]) == (1, "fail")
        assert "FUSEBOARD_REDIS_URL" in said["findings"][0]["says"]

    def test_a_state_directory_that_cannot_be_written_and_a_broken_bootstrap_file(
        self, environment, run, tmp_path
    ):
        (tmp_path / "file").write_text("in the way")
        environment.setenv("FUSEBOARD_STATE_DIR", str(tmp_path / "file" / "below"))
        environment.setenv("FUSEBOARD_BOOTSTRAP_FILE", str(tmp_path / "file"))
        code, said = run("doctor")
        assert (code, found(said)["state directory"], found(said)["bootstrap file"]) == (1, "fail", "fail")

    def test_limits_that_are_to_follow_the_time_of_calls_and_cannot(self, environment, run, limits):
        slots = msgspec.structs.replace(VENDOR, algorithm=Algorithm.CONCURRENCY)
        for rise, limit, floor, missing in (
            (0, VENDOR, 0, []),
            (
                50,
                VENDOR,
                0,
                ["give it a limit with the algorithm concurrency", "set vendor_floor_percent in"],
            ),
            (50, slots, 0, ["set vendor_floor_percent in"]),
            (50, slots, 10, []),
        ):
            gpus = Dependency(name="gpus", latency_rise_percent=rise, vendor_limits=(limit,), breaker=BREAKER)
            tuning = msgspec.structs.replace(RULES.tuning, vendor_floor_percent=floor)
            publish(limits, msgspec.structs.replace(RULES, dependencies=(gpus,), tuning=tuning), revision=43)
            _, said = run("doctor")
            do = [one["do"] for one in said["findings"] if one["check"] == "limits"]
            assert [text.startswith(start) for text, start in zip(do, missing, strict=True)].count(False) == 0

    def test_nothing_published(self, environment, run, limits):
        limits.flushall()
        _, said = run("doctor")
        assert found(said)["configuration"] == "warn"
        assert "nothing was published" in json.dumps(said)

    def test_a_wrong_password_eviction_a_stranger_and_too_few_rights(self, environment, run, valkey: Valkey):
        with redis.Redis.from_url(valkey.url) as client:
            publish(client, RULES, revision=42)
            environment.setenv("FUSEBOARD_REDIS_URL", f"redis://:wrong@127.0.0.1:{valkey.port}/0")
            code, said = run("doctor")
            assert (code, found(said)["redis"]) == (1, "fail")
            assert "percent-encode" in json.dumps(said)

            environment.setenv("FUSEBOARD_REDIS_URL", valkey.url)
            client.config_set("maxmemory-policy", "allkeys-lru")
            code, said = run("doctor")
            assert (code, found(said)["eviction policy"]) == (1, "fail")
            client.config_set("maxmemory-policy", "noeviction")

            rights = ["~fb1:production:*", "&fb1:production:*", "+@connection", "+@read", "+@write"]
            rights += ["+@scripting", "+@pubsub", "+@transaction", "+time", "+info"]
            client.execute_command("ACL", "SETUSER", "pod", "on", ">secret", *rights)
            environment.setenv("FUSEBOARD_REDIS_URL", f"redis://pod:secret@127.0.0.1:{valkey.port}/0")
            code, said = run("doctor")
            assert code == 0, said  # the rights it recommends are enough

            for missing in ("xadd", "hset", "zadd", "evalsha"):
                client.execute_command("ACL", "SETUSER", "pod", f"-{missing}")
                code, said = run("doctor")
                assert (code, found(said)["scripts"]) == (1, "fail"), missing
                assert "ACL SETUSER" in json.dumps(said)
                client.execute_command("ACL", "SETUSER", "pod", f"+{missing}")

            client.execute_command("CONFIG", "SET", "requirepass", "")
            _, said = run("doctor")
            assert found(said)["default user"] == "warn"  # on this machine only

    def test_clocks(self):
        assert clock_finding("clock", "theirs", 0.5, 0.0).level is Level.OK
        assert clock_finding("clock", "theirs", -2.0, 0.1).level is Level.WARN
        assert clock_finding("clock", "theirs", -2.0, 1.5).level is Level.OK
        assert clock_finding("clock", "theirs", 3600, 0.1).level is Level.FAIL


def test_as_a_module_and_as_a_script(environment):
    done = subprocess.run(
        [sys.executable, "-m", "fuseboard", "explain", "--tenant", "acme"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "next decision  tenant 'acme': allowed by this command in mode shared, revision 42" in done.stdout


def fuseboard_outcome() -> Any:
    from fuseboard import Outcome

    return Outcome.NEUTRAL
