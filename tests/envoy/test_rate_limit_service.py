"""What the rate limit service answers to descriptors."""

import json
from time import time

import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard import Agent, Mode
from fuseboard.contract.budgets import AtSpent, Budget
from fuseboard.contract.limits import Limit
from fuseboard.contract.policy import Tier
from fuseboard.contract.words import Algorithm, Dimension, Period
from fuseboard.envoy import answers, asks
from fuseboard.envoy import rls_pb2 as pb
from fuseboard.envoy.service import InvalidMessage
from tests.agents.published import publish
from tests.agents.servers import POLICY, TUNING
from tests.envoy.conftest import Answering, policy_of
from tests.envoy.messages import OK, OVER, codes, descriptor, headers, remaining, request
from tests.waiting import eventually

FILE = """
domain: edge
descriptors:
  - key: path
    rate_limit: {unit: day, requests_per_unit: 3, name: paths}
  - key: quick
    rate_limit: {unit: minute, requests_per_unit: 60}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: free
    rate_limit: {unlimited: true}
  - key: stated
    accepts_override: 5
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: tokens
    measure: tokens
    charge: after
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: group
    value: a*
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: tenant
    means: tenant
    descriptors:
      - key: user
        means: user
      - key: to
        dependency: payments
      - key: tokens_to
        dependency: payments
        measure: tokens
        charge: after
  - key: user
    means: user
  - key: ip
    means: ip
  - key: api_key
    means: api_key
  - key: route
    means: endpoint
  - key: to
    dependency: payments
  - key: tokens_of
    means: tenant
    measure: tokens
  - key: tokens_before
    dependency: payments
    measure: tokens
  - key: tokens_to
    dependency: payments
    measure: tokens
    charge: after
"""
HOURLY = Limit(name="hourly", limit=4, window_ms=3_600_000, algorithm=Algorithm.SLIDING_WINDOW)
TOKENS = Limit(
    name="tokens", limit=10, window_ms=3_600_000, algorithm=Algorithm.SLIDING_WINDOW, measure="tokens"
)
SLOTS = Limit(name="slots", limit=1, window_ms=600_000, algorithm=Algorithm.CONCURRENCY)
PER_USER = Limit(name="per-user", limit=2, window_ms=3_600_000, burst=2, per=(Dimension.USER,))
RULES = policy_of(
    FILE,
    policy=POLICY,
    tiers=(Tier(name="free", quotas=(HOURLY, TOKENS)), Tier(name="unlimited")),
    subject_limits=(PER_USER,),
)


async def test_each_hit_is_counted_until_the_limit_of_the_rule_refuses(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        path = request(descriptor(("path", "/a")))
        for left in (2, 1, 0):
            answer = await envoy.ask(path)
            (status,) = answer.statuses
            assert codes(answer) == (OK, [OK])
            assert (status.limit_remaining, status.current_limit.requests_per_unit) == (left, 3)
            assert (status.current_limit.unit, status.current_limit.name) == (pb.DAY, "paths")
            assert abs(status.duration_until_reset.seconds - (86_400 - time() % 86_400)) <= 2
            assert (answer.raw_body, list(answer.response_headers_to_add)) == (b"", [])
        refused = await envoy.ask(path)
        assert (codes(refused), remaining(refused)) == ((OVER, [OVER]), [0])
        assert codes(await envoy.ask(request(descriptor(("path", "/b"))))) == (OK, [OK])
        other_domain = request(descriptor(("path", "/a")), domain="other")
        assert codes(await envoy.ask(other_domain)) == (OK, [OK])


async def test_a_refusal_is_the_answer_of_the_middlewares(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        refused = await envoy.ask(request(descriptor(("path", "/a")), hits=4))
        assert codes(refused) == (OVER, [OVER]), "no hits are spent at all"
        assert remaining(await envoy.ask(request(descriptor(("path", "/a")), hits=3))) == [0]
        refused = await envoy.ask(request(descriptor(("path", "/a"))))
        sent, body = headers(refused), json.loads(refused.raw_body)
        assert sent["content-type"] == "application/problem+json"
        assert int(sent["retry-after"]) == body["retry_after"] > 0
        assert refused.statuses[0].duration_until_reset.seconds <= int(sent["retry-after"])
        assert (body["status"], body["violated-policies"]) == (429, ["paths"])
        assert "content-length" not in sent


async def test_descriptors_are_all_charged_or_none(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        assert remaining(await envoy.ask(request(descriptor(("path", "/a")), hits=3))) == [0]
        both = request(descriptor(("quick", "x")), descriptor(("path", "/a")))
        for _ in range(3):
            assert codes(await envoy.ask(both)) == (OVER, [OK, OVER])
        assert remaining(await envoy.ask(request(descriptor(("quick", "x"))))) == [59]


async def test_two_descriptors_with_one_counter_need_their_sum(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        twice = request(descriptor(("group", "a1")), descriptor(("group", "a2")))
        assert (await envoy.ask(twice)).overall_code == OK
        assert codes(await envoy.ask(request(descriptor(("group", "a3"))))) == (OVER, [OVER])


async def test_what_no_rule_decides_is_allowed_and_counted_as_unmatched(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        answer = await envoy.ask(
            request(descriptor(("nothing", "x")), descriptor(("free", "x")), descriptor(("path", "/a")))
        )
        assert codes(answer) == (OK, [OK, OK, OK])
        assert remaining(answer) == [0, 2**32 - 1, 2]
        assert [status.HasField("current_limit") for status in answer.statuses] == [False, False, True]
        assert codes(await envoy.ask(request(descriptor(("path", "/a")), domain="unknown"))) == (OK, [OK])
        assert (envoy.service.unmatched, envoy.service.allowed, envoy.service.refused) == (2, 2, 0)


async def test_shadow_rules_never_refuse(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        watched = request(descriptor(("watched", "x")))
        answers = [await envoy.ask(watched) for _ in range(3)]
        assert [codes(answer) for answer in answers] == [(OK, [OK])] * 3
        assert [remaining(answer) for answer in answers] == [[0]] * 3


async def test_hits_of_a_descriptor_come_before_those_of_the_request(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        own, usual = descriptor(("quick", "a"), hits=10), descriptor(("quick", "b"))
        assert remaining(await envoy.ask(request(own, usual, hits=3))) == [50, 57]
        assert remaining(await envoy.ask(request(usual))) == [56]


async def test_no_hits_are_a_check(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        check = request(descriptor(("path", "/a"), hits=0))
        assert [remaining(await envoy.ask(check)) for _ in range(2)] == [[3], [3]]
        assert codes(await envoy.ask(request(descriptor(("path", "/a")), hits=3))) == (OK, [OK])
        beside = request(descriptor(("quick", "x")), descriptor(("path", "/a"), hits=0))
        assert codes(await envoy.ask(beside)) == (OVER, [OK, OVER])
        assert remaining(await envoy.ask(request(descriptor(("quick", "x"))))) == [59]


async def test_what_is_charged_after_the_work_is_never_refused(
    answering: Answering, limits: redis.Redis
) -> None:
    async with answering(RULES) as envoy:
        check = request(descriptor(("tokens", "x"), hits=0))
        for value in ("x", "y"):
            assert codes(await envoy.ask(request(descriptor(("tokens", value), hits=0)))) == (OK, [OK])
        for _ in range(2):
            assert codes(await envoy.ask(request(descriptor(("tokens", "x"), hits=80)))) == (OK, [OK])

        async def checked() -> pb.RateLimitResponse:
            return await envoy.ask(check)

        await eventually(checked, accept=lambda one: one.overall_code == OVER)
        assert codes(await envoy.ask(request(descriptor(("tokens", "x"), hits=80)))) == (OK, [OK])
        # The same counter with a rule that refuses shows what was charged.
        refusing = FILE.replace("    measure: tokens\n    charge: after\n    rate_limit", "    rate_limit")
        before = policy_of(refusing)
        publish(limits, before, revision=8)
        await eventually(checked, accept=lambda one: one.overall_code == OVER)
        unspent = await envoy.ask(request(descriptor(("tokens", "y"), hits=0)))
        assert remaining(unspent) == [100], "no hits charge nothing"


async def test_the_quotas_of_the_tenant_decide(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        acme = request(descriptor(("tenant", "acme")))
        (status,) = (await envoy.ask(acme)).statuses
        assert (status.limit_remaining, status.current_limit.name) == (3, "hourly")
        assert [codes(await envoy.ask(acme))[0] for _ in range(4)] == [OK, OK, OK, OVER]
        assert codes(await envoy.ask(request(descriptor(("tenant", "big")), hits=1000))) == (OK, [OK])
        late = await envoy.ask(request(descriptor(("tenant", "late-payer"))))
        assert (codes(late), json.loads(late.raw_body)["status"]) == ((OVER, [OVER]), 403)


async def test_a_caller_below_its_tenant_spends_the_quotas_of_the_tenant(answering: Answering) -> None:
    tiers = (Tier(name="free", quotas=(HOURLY, PER_USER)), Tier(name="unlimited"))
    async with answering(msgspec.structs.replace(RULES, tiers=tiers)) as envoy:
        ann, ben = (request(descriptor(("tenant", "acme"), ("user", name))) for name in ("ann", "ben"))
        found = [(await envoy.ask(one)).overall_code for one in (ann, ann, ann, ben, ben, ben)]
        assert found == [OK, OK, OVER, OK, OK, OVER]
        # Nothing is left for the tenant without a user either.
        assert codes(await envoy.ask(request(descriptor(("tenant", "acme"))))) == (OVER, [OVER])


async def test_a_request_keeps_no_slot(answering: Answering) -> None:
    policy = policy_of(FILE, tiers=(Tier(name="free", quotas=(SLOTS,)), Tier(name="unlimited")))
    async with answering(policy) as envoy:

        async def ask() -> pb.RateLimitResponse:
            return await envoy.ask(request(descriptor(("tenant", "acme"))))

        # Envoy does not say when a request ends.
        for _ in range(3):
            await eventually(ask, accept=lambda one: one.overall_code == OK)


async def test_tokens_are_no_calls(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        tokens = request(descriptor(("tokens_of", "acme"), hits=5))
        assert [codes(await envoy.ask(tokens))[0] for _ in range(3)] == [OK, OK, OVER]
        assert remaining(await envoy.ask(request(descriptor(("tenant", "acme"))))) == [3]


async def test_a_budget_may_be_larger_than_the_figures_of_envoy(answering: Answering) -> None:
    budget = Budget(name="all", amount=2**33, period=Period.MONTH, measure="tokens")
    tiers = tuple(msgspec.structs.replace(tier, budgets=(budget,)) for tier in POLICY.tiers)
    async with answering(policy_of(FILE, tiers=tiers)) as envoy:
        for hits in (0, 5):
            answer = await envoy.ask(request(descriptor(("tokens_of", "acme"), hits=hits)))
            assert codes(answer) == (OK, [OK])
            assert remaining(answer) == [asks.UNLIMITED]
            assert not answer.statuses[0].HasField("current_limit")
        for _ in range(8):  # at most 1,000,000,000 hits count
            await envoy.ask(request(descriptor(("tokens_of", "acme"), hits=1_000_000_000)))
        answer = await envoy.ask(request(descriptor(("tokens_of", "acme"), hits=1_000_000_000)))
        assert answer.overall_code == OVER
        assert envoy.service.defects == 0


async def test_a_budget_that_only_warns_is_not_shown_as_the_next_limit(answering: Answering) -> None:
    warns = Budget(name="warns", amount=10, period=Period.DAY, measure="tokens", at_100=AtSpent.WARN.value)
    stops = Budget(name="stops", amount=100, period=Period.DAY, measure="tokens")
    tiers = tuple(msgspec.structs.replace(tier, budgets=(warns, stops)) for tier in POLICY.tiers)
    async with answering(policy_of(FILE, tiers=tiers)) as envoy:
        for left in (80, 60):
            answer = await envoy.ask(request(descriptor(("tokens_of", "acme"), hits=20)))
            assert (codes(answer), remaining(answer)) == ((OK, [OK]), [left])
            assert answer.statuses[0].current_limit.name == "budget:stops"


async def test_limits_of_callers_decide_without_a_tenant(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        for value in ("ann", "", "x" * 300, "\x00", "é"):
            asked = request(descriptor(("user", value)))
            found = [(await envoy.ask(asked)).overall_code for _ in range(3)]
            # What no user can be called shares one counter.
            assert found == ([OK, OK, OVER] if value in ("ann", "", "é") else [OVER] * 3), value
        assert codes(await envoy.ask(request(descriptor(("route", ""))))) == (OK, [OK])


@pytest.mark.parametrize(
    ("key", "dimension"),
    [("ip", Dimension.IP), ("api_key", Dimension.API_KEY), ("route", Dimension.ENDPOINT)],
)
async def test_each_word_names_its_part_of_the_caller(
    answering: Answering, key: str, dimension: Dimension
) -> None:
    limit = msgspec.structs.replace(PER_USER, per=(dimension,))
    async with answering(msgspec.structs.replace(RULES, subject_limits=(limit,))) as envoy:
        for value in ("192.0.2.1", "192.0.2.2"):
            asked = request(descriptor((key, value)))
            assert [(await envoy.ask(asked)).overall_code for _ in range(3)] == [OK, OK, OVER]


async def test_the_nearest_limit_that_can_refuse_is_shown(answering: Answering) -> None:
    watched = msgspec.structs.replace(HOURLY, name="watched", limit=1, shadow=True)
    tiers = (Tier(name="free", quotas=(SLOTS, watched, HOURLY)), Tier(name="unlimited"))
    async with answering(msgspec.structs.replace(RULES, tiers=tiers)) as envoy:
        (status,) = (await envoy.ask(request(descriptor(("tenant", "acme"))))).statuses
        assert (status.current_limit.name, status.limit_remaining) == ("hourly", 3)


async def test_a_bucket_is_full_again_when_what_was_spent_is_refilled(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests must not find the end of another day.
    monkeypatch.setattr(answers, "_ends", {})
    async with answering(RULES) as envoy:
        quick = await envoy.ask(request(descriptor(("quick", "x"), hits=10)))
        assert quick.statuses[0].duration_until_reset.seconds == 10
        path = request(descriptor(("path", "/a")))
        await envoy.ask(path)
        # The next day has another end.
        monkeypatch.setattr(answers, "time", lambda: time() + 2 * 86_400)
        assert 0 < (await envoy.ask(path)).statuses[0].duration_until_reset.seconds <= 86_400


async def test_a_value_that_is_not_unicode_is_counted(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        odd = pb.RateLimitDescriptor(entries=[pb.RateLimitDescriptor.Entry(key=b"path", value=b"\xff\xfe")])
        assert [codes(await envoy.ask(request(odd)))[0] for _ in range(4)] == [OK, OK, OK, OVER]
        assert codes(await envoy.ask(request(descriptor(("path", ""))))) == (OK, [OK]), "not as an empty one"


@pytest.mark.parametrize(
    ("stated", "allowed"),
    [
        ((3, pb.DAY), 3),
        ((50, pb.DAY), 5),
        ((0, pb.DAY), 0),
        ((3, pb.MINUTE), 2),
        (None, 2),
    ],
)
async def test_a_limit_that_envoy_states_counts_only_as_far_as_the_rule_accepts_it(
    answering: Answering, stated: tuple[int, int] | None, allowed: int
) -> None:
    async with answering(RULES) as envoy:
        asked = request(descriptor(("stated", "x"), stated=stated))
        assert sum([codes(await envoy.ask(asked))[0] == OK for _ in range(7)]) == allowed
        own = request(descriptor(("path", "x"), stated=(1_000, pb.DAY)))
        assert sum([codes(await envoy.ask(own))[0] == OK for _ in range(4)]) == 3


async def test_of_two_limits_that_are_stated_for_one_counter_the_smaller_counts(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        both = request(
            descriptor(("stated", "x"), stated=(5, pb.DAY)), descriptor(("stated", "x"), stated=(1, pb.DAY))
        )
        assert codes(await envoy.ask(both)) == (OVER, [OVER, OVER])


async def test_a_call_cannot_be_checked_and_negative_hits_give_nothing_back(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        answer = await envoy.ask(request(descriptor(("to", "x"), hits=0)))
        assert (codes(answer), "permit" in answer.dynamic_metadata) == ((OK, [OK]), False)
        path = descriptor(("path", "/a"))
        assert remaining(await envoy.ask(request(path, hits=2))) == [1]
        negative = request(descriptor(("path", "/a"), hits=2, is_negative_hits=True))
        assert codes(await envoy.ask(negative)) == (OK, [OK])
        assert (remaining(await envoy.ask(request(path))), envoy.service.negative) == ([0], 1)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff" * 20, request(descriptor(("a", "b")), domain=""), request(), request(*[descriptor()] * 51)],
    ids=["empty", "noise", "no domain", "no descriptor", "too many"],
)
async def test_a_message_that_asks_for_nothing_is_invalid(answering: Answering, body: bytes) -> None:
    async with answering(RULES) as envoy:
        with pytest.raises(InvalidMessage):
            await envoy.ask(body)
        assert envoy.service.invalid == 1
        assert codes(await envoy.ask(request(*[descriptor()] * 50))) == (OK, [OK] * 50)


async def test_a_defect_allows_the_request_and_keeps_no_permit(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(RULES) as envoy:

        async def fail(asks: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(Agent, "admit_together", lambda self, asks: fail(asks))
        answer = await envoy.ask(request(descriptor(("to", "x")), descriptor(("path", "/a"))))
        assert answer.overall_code == OK
        assert (envoy.service.defects, len(envoy.sidecar.permits)) == (1, 0)


async def test_an_answer_that_cannot_be_written_keeps_no_permit(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(RULES) as envoy:

        def fail(*given: object) -> bytes:
            raise ZeroDivisionError

        monkeypatch.setattr(answers, "allowed", fail)
        answer = await envoy.ask(request(descriptor(("to", "x"))))
        assert (answer.overall_code, len(envoy.sidecar.permits), envoy.service.defects) == (OK, 0, 1)


async def test_new_rules_count_for_requests_that_were_asked_before(
    answering: Answering, limits: redis.Redis
) -> None:
    async with answering(RULES) as envoy:
        path = request(descriptor(("path", "/a")))
        assert (await envoy.ask(path)).statuses[0].HasField("current_limit")
        publish(limits, msgspec.structs.replace(RULES, descriptors=()), revision=8)

        async def ask() -> pb.RateLimitResponse:
            return await envoy.ask(path)

        await eventually(ask, accept=lambda one: not one.statuses[0].HasField("current_limit"))


async def test_few_requests_are_remembered_and_no_long_one(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asks, "MAX_REMEMBERED_BYTES", 100)
    questions, rules = asks.Questions("production", most=3), RULES.descriptors
    from fuseboard.contract.descriptors import DescriptorRules

    prepared = DescriptorRules(rules)
    first = questions.read(prepared, request(descriptor(("path", "0"))))
    for number in range(1, 5):
        assert questions.read(prepared, request(descriptor(("path", "0")))) is first
        questions.read(prepared, request(descriptor(("path", str(number)))))
    assert len(questions) == 3
    questions.read(prepared, request(descriptor(("path", "x" * 100))))
    assert len(questions) == 3


async def test_each_descriptor_is_counted_for_its_rule(answering: Answering) -> None:
    async with answering(RULES) as envoy:
        for hits in (1, 3, 1):
            await envoy.ask(
                request(
                    descriptor(("path", "/a"), hits=hits),
                    descriptor(("watched", "x")),
                    descriptor(("no", "1")),
                )
            )
        tally = envoy.agent.sidecar_figures.descriptors.next()
        assert tally is not None
        assert {(one.rule, one.asked, one.refused, one.shadow) for one in tally.rules} == {
            ("path", 3, 1, 0),
            ("watched", 3, 0, 1),
        }
        assert [(one.domain, one.keys, one.asked) for one in tally.unmatched] == [("edge", "no", 3)]


async def test_without_redis_rules_allow_and_quotas_have_the_share_of_the_pod(
    answering: Answering, valkey: Valkey
) -> None:
    # The quota has 60 per minute and a burst of 20, and this pod is alone. Rules of files fail open.
    policy = msgspec.structs.replace(policy_of(FILE), tuning=TUNING)
    with redis.Redis.from_url(valkey.url) as client:
        async with answering(policy, client=client, url=valkey.url) as envoy:
            known = await envoy.ask(request(descriptor(("path", "/a")), hits=3))
            assert known.statuses[0].HasField("current_limit")
            valkey.stop()
            await eventually(lambda: envoy.agent.mode is Mode.LOCAL)
            path = await envoy.ask(request(descriptor(("path", "/a")), hits=3))
            assert codes(path) == (OK, [OK])
            assert not path.statuses[0].HasField("current_limit"), "nobody knows what is left"
            assert (await envoy.ask(request(descriptor(("path", "/a")), hits=3))).overall_code == OK
            found = [
                (await envoy.ask(request(descriptor(("tenant", "acme")), hits=9))).overall_code for _ in "abc"
            ]
            assert found == [OK, OK, OVER]
            call = await envoy.ask(request(descriptor(("to", "x"))))
            assert "permit" in call.dynamic_metadata
            assert (await envoy.ask(request(descriptor(("tokens", "x"), hits=5)))).overall_code == OK
            assert envoy.service.defects == 0
