"""The headers of the rate limit service's answers, which the word ``headers`` of a domain chooses."""

from tests.envoy.conftest import Answering, policy_of
from tests.envoy.messages import descriptor, headers, request
from tests.envoy.test_rate_limit_service import FILE, RULES


async def test_allowed_answers_have_the_headers_that_the_domain_says(answering: Answering) -> None:
    asked = request(
        descriptor(("path", "/a")),
        descriptor(("watched", "x")),
        descriptor(("user", "ann"), hits=0),
        descriptor(("to", "x")),
    )
    refused = request(descriptor(("path", "/a"), hits=9))
    async with answering(policy_of(f"headers: on{FILE}", policy=RULES)) as envoy:
        for left in (2, 1):
            found = headers(await envoy.ask(asked))
            assert found == {
                "ratelimit-policy": '"per-user";q=2;w=3600, "paths";q=3;w=86400',
                "ratelimit": f'"per-user";r=2, "paths";r={left}',
            }
        assert "ratelimit-policy" in headers(await envoy.ask(refused))
        assert headers(await envoy.ask(request(descriptor(("to", "x"))))) == {}


async def test_of_two_counters_of_one_limit_headers_have_the_one_with_the_least_left(
    answering: Answering,
) -> None:
    async with answering(policy_of(f"headers: on{FILE}", policy=RULES)) as envoy:
        for left in (2, 1):
            both = request(descriptor(("path", "/a")), descriptor(("path", f"/{left}")))
            assert headers(await envoy.ask(both)) == {
                "ratelimit-policy": '"paths";q=3;w=86400',
                "ratelimit": f'"paths";r={left}',
            }
        checked = request(descriptor(("path", "/a"), hits=0), descriptor(("path", "/b")))
        assert headers(await envoy.ask(checked))["ratelimit"] == '"paths";r=1'


async def test_legacy_headers_are_those_of_the_limit_with_the_least_left(answering: Answering) -> None:
    async with answering(policy_of(f"headers: legacy{FILE}", policy=RULES)) as envoy:
        asked = request(
            descriptor(("path", "/a")), descriptor(("quick", "x")), descriptor(("watched", "x"), hits=1)
        )
        found = headers(await envoy.ask(asked))
        assert (found["ratelimit-limit"], found["ratelimit-remaining"]) == ("3", "2")
        assert 0 < int(found["ratelimit-reset"]) <= 86_400
        over = headers(
            await envoy.ask(request(descriptor(("path", "/a"), hits=9), descriptor(("quick", "x"))))
        )
        assert over["ratelimit-limit"] == "3"
        assert {"ratelimit-policy", "ratelimit-reset"} <= over.keys()
        assert headers(await envoy.ask(request(descriptor(("free", "x"))))) == {}
