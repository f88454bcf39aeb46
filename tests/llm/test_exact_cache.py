"""``ExactCache``: the same request of the same tenant, and no other."""

import threading
from typing import Any

import pytest

import fuseboard
from fuseboard import Agent, Cached, Misconfigured
from fuseboard.llm import ExactCache, Usage
from fuseboard.testing import ManualClock
from tests.agents.alone import settings_with
from tests.agents.servers import POLICY

REQUEST: dict[str, Any] = {
    "model": "gpt-5.2",
    "temperature": 0,
    "messages": [{"role": "user", "content": "How many tokens?"}],
}


def test_the_same_request_is_answered_and_its_usage_saved():
    clock = ManualClock()
    cache = ExactCache(clock=clock)
    assert cache.get(REQUEST) is None
    cache.put(REQUEST, "many", usage=Usage(fresh=9, output=2))
    clock.advance(5)
    reordered = dict(reversed(REQUEST.items()))
    assert cache.get(reordered) == ("many", 5.0)
    assert cache.get(REQUEST) == ("many", 5.0)
    assert (cache.hits, cache.misses, len(cache)) == (2, 1, 1)
    assert (cache.saved["tokens"], cache.saved["output_tokens"]) == (22, 4)


@pytest.mark.parametrize(
    "other", [{"model": "gpt-5.2-mini"}, {"temperature": 0.0, "top_p": 1}, {"messages": []}]
)
def test_another_request_is_not(other: dict[str, Any]):
    cache = ExactCache()
    cache.put(REQUEST, "many")
    assert cache.get({**REQUEST, **other}) is None


def test_no_tenant_gets_the_answer_of_another():
    cache = ExactCache()
    with fuseboard.tenant("acme"):
        cache.put(REQUEST, "for acme")
        assert cache.get(REQUEST) is not None
    assert cache.get(REQUEST) is None
    assert cache.get(REQUEST, tenant="other") is None
    found = cache.get(REQUEST, tenant="acme")
    assert found is not None
    assert found[0] == "for acme"


@pytest.mark.parametrize("temperature", [{"temperature": 0.7}, {"temperature": None}, {}])
def test_only_a_request_that_wants_the_same_answer_is_cached(temperature: dict[str, Any]):
    request = {"model": "m", **temperature}
    cache, of_all = ExactCache(), ExactCache(any_temperature=True)
    for each in (cache, of_all):
        each.put(request, "answer")
    assert (cache.get(request), len(cache), cache.misses) == (None, 0, 0)
    assert of_all.get(request) is not None


def test_it_is_bounded_and_forgets_what_was_not_used_longest():
    cache = ExactCache(most=2)
    requests = [{**REQUEST, "seed": number} for number in range(3)]
    cache.put(requests[0], 0)
    cache.put(requests[1], 1)
    cache.get(requests[0])
    cache.put(requests[2], 2)
    assert [cache.get(request) is not None for request in requests] == [True, False, True]
    cache.clear()
    assert len(cache) == 0


def test_an_answer_is_never_too_old():
    clock = ManualClock()
    cache = ExactCache(max_age_s=60, clock=clock)
    cache.put(REQUEST, "many")
    clock.advance(61)
    assert (cache.get(REQUEST), len(cache)) == (None, 0)


@pytest.mark.parametrize("wrong", [{"most": 0}, {"most": True}, {"max_age_s": 0}])
def test_its_bounds_are_checked(wrong: dict[str, Any]):
    with pytest.raises(Misconfigured):
        ExactCache(**wrong)


def test_threads_share_it():
    cache = ExactCache(most=50)

    def work(number: int) -> None:
        for seed in range(300):
            request = {**REQUEST, "seed": (seed * 7 + number) % 80}
            found = cache.get(request)
            assert found is None or found[0] == request["seed"]
            cache.put(request, request["seed"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(cache), cache.hits + cache.misses) == (50, 1200)


async def test_a_chain_falls_back_to_it(tmp_path: Any):
    agent = Agent(settings=settings_with(tmp_path, POLICY))
    cache = ExactCache()
    cache.put(REQUEST, "many")
    chain = agent.fallback("llm", [Cached(lambda: cache.get(REQUEST), max_age_s=600)])

    async def down() -> str:
        raise ConnectionRefusedError

    answer = await chain.run(down)
    assert (answer.value, answer.is_cached, cache.hits) == ("many", True, 1)
