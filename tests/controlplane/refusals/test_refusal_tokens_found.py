"""Keys of refusal tokens: derived, sent to pods, rotated; and which tokens are genuine."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from asgiref.sync import sync_to_async

from controlplane.gateway.answers.refusal_keys import RefusalKeys
from controlplane.refusals.keys import ACCEPTED_DAYS, DAY_S, key_of
from controlplane.refusals.models import RefusalService
from controlplane.refusals.tokens import MAX_SERVICES, ExpiredToken, NotOurToken, find_token
from fuseboard.contract.refusal_token import TokenContent, make_token
from fuseboard.contract.sync import decode_response
from fuseboard.contract.words import Mode, Reason
from tests.controlplane.gateway.manual_gateway import NOON, TurnedClock, beat, post, ready_gateway
from tests.controlplane.gateway.test_gateway_coordination import answered, gateways  # noqa: F401 - fixtures

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
TODAY = int(NOW.timestamp() // DAY_S)
HERE = ("production",)


def token(at=NOW, *, key=None, day=TODAY, environment="production", service="shop", secret=None):
    key = key or key_of(environment, service, day, secret=secret)
    refused = TokenContent(
        at_ms=int(at.timestamp() * 1000),
        number=1,
        revision=7,
        reason=Reason.QUOTA,
        mode=Mode.SHARED,
        rule="requests",
        tenant="acme",
        server="shop-2",
    )
    return make_token(key, refused)


@pytest.fixture
def shop(db):
    RefusalService.objects.create(environment="production", service="shop", last_on=NOW.date())
    RefusalService.objects.create(environment="staging", service="shop", last_on=NOW.date())


def test_a_genuine_token_is_found_with_its_environment_and_service(shop):
    found = find_token(token(), ("production", "staging"), NOW)
    assert (found.environment, found.service, found.at) == ("production", "shop", NOW)
    assert found.token.is_tenant(found.key, "acme")
    assert find_token(token(environment="staging"), ("staging", "production"), NOW).environment == "staging"


def test_a_token_of_an_environment_that_the_reader_may_not_see_is_like_a_forged_one(shop):
    with pytest.raises(NotOurToken):
        find_token(token(environment="staging"), HERE, NOW)
    with pytest.raises(NotOurToken):
        find_token(token(), (), NOW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        token()[:-1],
        token()[:20],
        token()[:-1] + ("A" if token()[-1] != "A" else "B"),
        token(secret="the key of another installation"),
        token(service="a service that got no key"),
        "hello",
        "\x00" * 76,
    ],
)
def test_a_forged_cut_or_foreign_token_is_not_ours(shop, text):
    with pytest.raises(NotOurToken) as refused:
        find_token(text, HERE, NOW)
    assert "not a token of this installation" in str(refused.value)


def test_a_pod_of_one_service_cannot_speak_for_another(shop):
    RefusalService.objects.create(environment="production", service="jobs", last_on=NOW.date())
    shops, jobs = key_of("production", "shop", TODAY), key_of("production", "jobs", TODAY)
    assert find_token(token(key=shops), HERE, NOW).service == "shop"
    with pytest.raises(NotOurToken):
        find_token(token(key=msgspec.structs.replace(shops, id=jobs.id)), HERE, NOW)


def test_an_expired_token_is_named_with_its_day(shop, settings):
    at = datetime(2026, 10, 3, 9, 0, tzinfo=UTC)
    old = token(at, day=int(at.timestamp() // DAY_S))
    with pytest.raises(ExpiredToken, match=r"It is from 3 October 2026, and tokens are explained for 30"):
        find_token(old, HERE, NOW)
    settings.REFUSAL_TOKEN_DAYS = 60
    assert find_token(old, HERE, NOW).at == at


def test_keys_rotate_every_day_and_a_pod_that_is_cut_off_keeps_its_key_for_eight_days(shop):
    assert key_of("production", "shop", TODAY) != key_of("production", "shop", TODAY - 1)
    last = TODAY - ACCEPTED_DAYS
    assert find_token(token(day=last), HERE, NOW).at == NOW
    for wrong in (last - 1, TODAY + 1, 0, 65_535):
        with pytest.raises(NotOurToken):
            find_token(token(day=wrong), HERE, NOW)


def test_tokens_from_before_a_new_secret_key_are_found_with_the_fallbacks(shop, settings):
    before = settings.SECRET_KEY
    old = token()
    settings.SECRET_KEY = "another secret key, long enough for everything that signs with it"
    with pytest.raises(NotOurToken):
        find_token(old, HERE, NOW)
    settings.SECRET_KEY_FALLBACKS = [before]
    assert find_token(old, HERE, NOW).service == "shop"


async def test_a_heartbeat_is_answered_with_the_key_of_its_service_and_the_next_day_with_another():
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    first = decode_response((await post(gateway, beat())).content).refusal_key
    today = int((NOON + clock.now) // DAY_S)
    assert first == key_of("production", "checkout", today)
    other = decode_response((await post(gateway, beat("pod-2", service="jobs"))).content).refusal_key
    assert other != first
    clock.turn(DAY_S)
    later = decode_response((await post(gateway, beat())).content).refusal_key
    assert later == key_of("production", "checkout", today + 1)


async def test_a_heartbeat_names_the_page_of_tokens_if_one_is_configured(settings):
    assert decode_response((await post(ready_gateway(TurnedClock()), beat())).content).explain_url == ""
    settings.EXPLAIN_URL = "https://fuseboard.example.com/explain"
    answer = decode_response((await post(ready_gateway(TurnedClock()), beat())).content)
    assert answer.explain_url == "https://fuseboard.example.com/explain"
    assert answer.refusal_key is not None


def test_no_more_than_a_thousand_services_get_a_key():
    keys = RefusalKeys(TurnedClock())
    parts = [keys.part(beat(service=f"service-{number}")) for number in range(MAX_SERVICES + 5)]
    assert all(parts[:MAX_SERVICES])
    assert not any(parts[MAX_SERVICES:])
    assert keys.part(beat(service="service-0")) == parts[0]
    # Another environment has its own room.
    assert keys.part(beat(environment="staging", service="shop"))


async def test_a_service_is_recorded_once_it_gets_a_key(gateways):  # noqa: F811
    gateway = await gateways()
    answer = await answered(gateway)
    await gateway.coordination.look()
    rows = await sync_to_async(list)(RefusalService.objects.values_list("environment", "service"))
    assert rows == [("production", "checkout")]
    made = token(datetime.now(UTC), key=answer.refusal_key, day=answer.refusal_key.day, service="checkout")
    found = await sync_to_async(find_token)(made, HERE, datetime.now(UTC) + timedelta(seconds=1))
    assert found.service == "checkout"
    # Nothing is written twice.
    await answered(gateway)
    await gateway.coordination.look()
    assert await sync_to_async(RefusalService.objects.count)() == 1
