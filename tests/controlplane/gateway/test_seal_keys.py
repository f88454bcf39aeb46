"""Each pod gets the keys of its own service, if its token says which one that is."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from controlplane.gateway.answers.seal_keys import PERIOD_S, seal_keys
from fuseboard.contract.seal_keys import MAX_KEYS, SealKey
from fuseboard.contract.sync import decode_response
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat, known_tokens, post, ready_gateway

NEW = "another secret key, long enough for everything that signs with it"


async def keys_of(gateway: Any, server: str = "pod-1", service: str = "checkout") -> tuple[SealKey, ...]:
    answer = await post(gateway, beat(server, service=service))
    assert answer.status_code == 200
    return decode_response(answer.content).seal_keys


def bound(gateway: Any, service: str) -> Any:
    gateway.tokens.replace({name: replace(token, service=service) for name, token in known_tokens().items()})
    return gateway


async def test_a_bound_token_gets_the_keys_of_its_service_and_no_other() -> None:
    shop = await keys_of(bound(ready_gateway(), "shop"), service="shop")
    jobs = await keys_of(bound(ready_gateway(), "jobs"), service="jobs")
    unbound = await keys_of(ready_gateway(), service="shop")
    assert len({key.key for key in (*shop, *jobs, *unbound)}) == 12
    assert unbound == await keys_of(ready_gateway(), "pod-2", service="jobs"), "it can report any service"
    assert shop == await keys_of(bound(ready_gateway(), "shop"), service="shop"), (
        "every gateway derives the same"
    )


async def test_pods_have_the_keys_before_and_after_a_change() -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    lasting = {name: replace(token, expires_at=None) for name, token in known_tokens().items()}
    gateway.tokens.replace(lasting)
    before = await keys_of(gateway)
    clock.turn(PERIOD_S)
    after = await keys_of(gateway)
    assert after[:3] == (before[3], before[0], before[1])
    assert after[3] not in before


def test_the_keys_of_a_secret_key_that_is_still_accepted_open(settings: Any) -> None:
    old, before = settings.SECRET_KEY, seal_keys("production", "shop", 7)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = NEW, [old]
    after = seal_keys("production", "shop", 7)
    assert after[0] not in before
    assert set(before) < set(after)
    settings.SECRET_KEY_FALLBACKS = [old, "x" * 50, "y" * 50]
    assert len(seal_keys("production", "shop", 7)) == MAX_KEYS


def test_during_a_rotation_in_steps_every_pod_opens_what_any_pod_seals(settings: Any) -> None:
    old, pods = settings.SECRET_KEY, []
    # Some gateways, and the pods that they answer, are one step behind the others.
    for key, fallbacks in ((old, []), (old, [NEW]), (NEW, [old]), (NEW, [])):
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = key, fallbacks
        pods.append(seal_keys("production", "shop", 7))
    for earlier, later in pairwise(pods):
        assert earlier[0] in later
        assert later[0] in earlier


@pytest.mark.parametrize("one", [("production", "shop", 1), ("production", "", 1), ("production", "shop", 2)])
def test_no_two_environments_services_or_periods_share_a_key(one: tuple[str, str, int]) -> None:
    others = [
        ("staging", "shop", 1),
        ("production", "shop2", 1),
        ("productionshop", "", 1),
        ("production", "shop", 9),
    ]
    assert not {key.key for key in seal_keys(*one)} & {
        key.key for other in others for key in seal_keys(*other)
    }
