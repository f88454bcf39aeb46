import msgspec
import pytest

from fuseboard.contract.sync import MAX_BODY_BYTES, NO_POLICY, SYNC_PATH, decode_response
from tests.controlplane.gateway.manual_gateway import (
    TOKEN,
    TurnedClock,
    beat,
    client,
    configuration,
    loaded,
    policy,
    post,
    ready_gateway,
)

GOOD = msgspec.to_builtins(beat())


def applied(held, **fields):
    head = held.configurations["production"].head
    usual = {"epoch": head.epoch, "revision": head.revision, "hash": head.hash, "status": "applied"}
    return {**GOOD, "applied": {**usual, **fields}}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Basic Zm9vOmJhcg==",
        "Bearer fb_sel1",
        "Bearer fb_sel1_wrong",
        "Bearer fb_other_s3cret_with_underscores",
        "Bearer xx_sel1_s3cret_with_underscores",
        f"{TOKEN}",
        "Bearer fb_sel\x80_x",
    ],
)
async def test_a_wrong_token_is_401_without_a_reason(header):
    gateway = ready_gateway()
    answer = await post(gateway, GOOD, headers={"authorization": header.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"] == "Bearer"
    usual = await post(gateway, GOOD, headers={"authorization": "Bearer nonsense"})
    assert answer.json() == usual.json()
    assert gateway.fleets == {}


async def test_an_expired_token_is_401():
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    assert (await post(gateway, beat())).status_code == 200
    clock.turn(100_001)
    assert (await post(gateway, beat())).status_code == 401


async def test_a_token_of_another_environment_is_403():
    answer = await post(ready_gateway(), beat(environment="staging"))
    assert answer.status_code == 403
    assert answer.json()["field"] == "environment"


async def test_an_unread_configuration_is_503_with_retry_after():
    gateway = ready_gateway()
    gateway.ready = False
    answer = await post(gateway, GOOD)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    async with client(gateway) as http:
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200


async def test_a_body_larger_than_the_cap_is_413_before_it_is_read():
    answer = await post(ready_gateway(), b"x" * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413
    assert answer.headers["connection"] == "close"


async def test_a_body_without_a_length_is_cut_off_at_the_cap():
    async def endless():
        for _ in range(1_000):
            yield b" " * 65_536

    async with client(ready_gateway()) as http:
        answer = await http.post(SYNC_PATH, content=endless())
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        msgspec.json.encode(GOOD)[:-10],
        b"<html>",
        b"\xff\xfe",
        msgspec.json.encode(GOOD)[:-1] + b',"up_ms":NaN}',
        msgspec.json.encode(GOOD)[:-1] + b',"zone":"\xff"}',
        msgspec.json.encode(GOOD)[:-1] + b',"more":' + b"[" * 100_000,
    ],
)
async def test_a_body_that_is_not_json_is_400(body):
    answer = await post(ready_gateway(), body)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == 400


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"mode": "elsewhere"}, "mode"),
        ({"sequence": -1}, "sequence"),
        ({"up_ms": 1.5}, "up_ms"),
        ({"boot": "short"}, "boot"),
        ({"server": "no spaces"}, "server"),
        ({"server": "newline\n"}, "server"),
        ({"counters": {"requests": -1}}, "counters.requests"),
        ({"counters": {"refused": {"quota": -1}}}, "counters.refused[...]"),
        ({"counters": {"refused": {"mood": 1}}}, "counters.refused"),
        ({"counters": {"tenants": [{"tenant": ""}]}}, "counters.tenants[0].tenant"),
        ({"breakers": [{"dependency": "llm", "state": "ajar"}]}, "breakers[0].state"),
        ({"breakers": [{"dependency": "llm", "generation": 2**63}]}, "breakers[0].generation"),
        ({"applied": {"revision": 2**63}}, "applied.revision"),
        ({"applied": {"epoch": 2**63}}, "applied.epoch"),
        ({"breakers": [{"dependency": "llm"}, {"dependency": "l\n"}]}, "breakers[1].dependency"),
        ({"counters": {"dependencies": [{"dependency": "-llm"}]}}, "counters.dependencies[0].dependency"),
        ({"counters": {"dependencies": [{"dependency": "x" * 65}]}}, "counters.dependencies[0].dependency"),
        ({"service": "newline\n"}, "service"),
        ({"want": ["fine", "bad\x00one"]}, "want[1]"),
        ({"want": ["t"] * 1001}, "want"),
    ],
)
async def test_a_wrong_value_is_422_naming_the_field(fields, named):
    gateway = ready_gateway()
    answer = await post(gateway, {**GOOD, **fields})
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == named
    assert named.split("[")[0] in answer.json()["detail"]
    assert not gateway.fleets["production"].servers if gateway.fleets else True


async def test_a_missing_field_is_422_naming_it():
    answer = await post(ready_gateway(), {key: value for key, value in GOOD.items() if key != "boot"})
    assert answer.status_code == 422
    assert "boot" in answer.json()["detail"]


async def test_unknown_fields_are_ignored():
    assert (await post(ready_gateway(), {**GOOD, "invented": {"later": [1, 2]}})).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-encoding": "gzip"}, 415),
    ],
)
async def test_other_content_types_and_encodings_are_415(headers, status):
    assert (await post(ready_gateway(), GOOD, headers=headers)).status_code == status


async def test_other_paths_are_404_and_other_methods_405():
    async with client(ready_gateway()) as http:
        assert (await http.get("/admin")).status_code == 404
        answer = await http.get(SYNC_PATH)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        answer = await http.post("/healthz")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_a_token_over_its_rate_is_429_until_time_has_passed():
    clock = TurnedClock()
    gateway = ready_gateway(clock, token_rate_per_s=1, token_burst=2)
    statuses = [(await post(gateway, beat(f"pod-{n}"))).status_code for n in range(3)]
    assert statuses == [200, 200, 429]
    answer = await post(gateway, beat("pod-9"))
    assert int(answer.headers["retry-after"]) >= 1
    clock.turn(1.0)
    assert (await post(gateway, beat("pod-9"))).status_code == 200


async def test_one_pod_over_its_rate_is_429_while_others_are_served():
    gateway = ready_gateway()
    statuses = [(await post(gateway, beat("wild"))).status_code for _ in range(60)]
    assert statuses.count(429) >= 15
    assert (await post(gateway, beat("calm"))).status_code == 200


async def test_the_policy_is_sent_only_when_its_hash_differs():
    gateway = ready_gateway()
    first = decode_response((await post(gateway, GOOD)).content)
    assert bytes(first.policy) == policy()
    assert first.head == gateway.configurations["production"].head
    second = decode_response((await post(gateway, {**applied(gateway), "sequence": 9_000_000})).content)
    assert second.policy == NO_POLICY
    assert (second.tenants, second.refetch_tenants) == ({}, False)
    assert second.next_ms == 5_000
    assert second.live_servers == 1


async def test_wanted_tenants_are_sent_with_null_for_unknown_ones():
    gateway = ready_gateway()
    body = {**applied(gateway), "want": ["acme", "nobody", 'quote"d']}
    answer = decode_response((await post(gateway, body)).content)
    assert answer.tenants["acme"].tier == "pro"
    assert answer.tenants["nobody"] is None
    assert answer.tenants['quote"d'] is None


async def test_changed_tenants_are_listed_since_the_applied_revision():
    gateway = ready_gateway()
    before = applied(gateway)
    held = gateway.configurations["production"]
    held.take(loaded(43, tenants={"acme": "free"}, whole=False))
    held.take(loaded(44, tenants={"umbrella": None}, whole=False))
    answer = decode_response((await post(gateway, {**before, "want": ["nobody"]})).content)
    assert answer.policy == NO_POLICY
    assert answer.tenants["acme"].tier == "free"
    assert answer.tenants["umbrella"] is None
    assert set(answer.tenants) == {"acme", "umbrella", "nobody"}
    now = {**applied(gateway, revision=43), "sequence": 9_000_000}
    assert set(decode_response((await post(gateway, now)).content).tenants) == {"umbrella"}


@pytest.mark.parametrize("way", ["too many", "too long ago", "another epoch"])
async def test_a_pod_that_missed_too_much_must_fetch_its_tenants_again(way):
    gateway = ready_gateway()
    body = applied(gateway)
    held = gateway.configurations["production"]
    if way == "too many":
        held.take(loaded(43, tenants={f"t{n}": "free" for n in range(501)}, whole=False))
    elif way == "too long ago":
        body = applied(gateway, revision=7)
    else:
        held.take(loaded(1, epoch=2))
    answer = decode_response((await post(gateway, body)).content)
    assert answer.refetch_tenants
    assert answer.tenants == {}


async def test_a_pod_with_a_newer_revision_gets_no_policy():
    gateway = ready_gateway()
    body = applied(gateway, revision=99, hash="another")
    answer = decode_response((await post(gateway, body)).content)
    assert (answer.policy, answer.tenants, answer.refetch_tenants) == (NO_POLICY, {}, False)


def test_a_configuration_is_never_replaced_by_an_older_empty_or_broken_one():
    held = configuration(revision=42)
    assert not held.take(loaded(41))
    assert not held.take(loaded(99, epoch=0))
    with pytest.raises(ValueError, match="no tenants"):
        held.take(loaded(43, tenants={}))
    with pytest.raises(ValueError, match="default_tier"):
        held.take(loaded(43, document=policy(default_tier="gone")))
    assert held.head.revision == 42
    assert set(held.tenants) == {"acme", "umbrella"}


async def test_metrics_need_a_token():
    gateway = ready_gateway(metrics_token="scrape-me")
    await post(gateway, beat())
    async with client(gateway) as http:
        assert (await http.get("/metrics", headers={"authorization": ""})).status_code == 401
        own = await http.get("/metrics", headers={"authorization": "Bearer scrape-me"})
        assert own.status_code == 200
        assert (await http.get("/metrics")).status_code == 200
    assert 'fuseboard_gateway_answers_total{status="200"} 1.0' in own.text
    assert 'fuseboard_servers{environment="production",state="online"} 1.0' in own.text
    assert "fuseboard_gateway_sync_seconds_count 1.0" in own.text


async def test_finding_12_metrics_show_an_agent_token_its_own_environment_only():
    gateway = ready_gateway(metrics_token="scrape-me")
    gateway.fleet("staging")
    await post(gateway, beat())
    async with client(gateway) as http:
        everything = (await http.get("/metrics", headers={"authorization": "Bearer scrape-me"})).text
        own = (await http.get("/metrics")).text
    assert 'environment="staging"' in everything
    assert "fuseboard_gateway_metrics_by_agent_token_total 0.0" in everything
    assert 'environment="production"' in own
    assert "staging" not in own
    assert "fuseboard_gateway_metrics_by_agent_token_total 1.0" in own
