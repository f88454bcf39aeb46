"""The throttle class for Django REST framework, in real views, with limits in a real Redis."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from django.core.signals import request_finished
from django.test import Client
from django.urls import include, path
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from fuseboard import AgentSettings, Reason, Refused, Subject, blocking
from fuseboard.contract.policy import Limit, TenantRecord, Tier
from fuseboard.contract.words import Algorithm, Dimension
from fuseboard.decision import Decision
from fuseboard.integrations.django import agent
from fuseboard.integrations.drf import FuseboardThrottle
from tests.agents.published import publish
from tests.agents.servers import POLICY

WINDOW = {"window_ms": 60_000, "algorithm": Algorithm.SLIDING_WINDOW}
REQUESTS = Limit(name="requests", limit=3, **WINDOW)
ORDERS = Limit(name="orders", limit=1, endpoints=("GET /v1/orders/(?P<pk>[^/.]+)/$",), **WINDOW)
OPEN = Limit(name="open", limit=1, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
PER_USER = Limit(name="per-user", limit=2, per=(Dimension.USER,), **WINDOW)
PER_IP = Limit(name="per-ip", limit=3, per=(Dimension.IP,), **WINDOW)
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(
        Tier(name="free", quotas=(REQUESTS,)),
        Tier(name="slots", quotas=(OPEN,)),
        Tier(name="routes", quotas=(ORDERS,)),
    ),
    subject_limits=(PER_USER, PER_IP),
)


class User:
    is_authenticated = True

    def __init__(self, pk: str) -> None:
        self.pk = pk


class ByHeader(BaseAuthentication):
    """As a token would: the caller is known only inside the view."""

    def authenticate(self, request: Request) -> tuple[User, None] | None:
        name = request.headers.get("X-User")
        return (User(name), None) if name else None


class Plain(APIView):
    authentication_classes = (ByHeader,)
    permission_classes = ()
    throttle_classes: tuple[type[FuseboardThrottle], ...] = (FuseboardThrottle,)

    def get(self, request: Request) -> Response:
        return Response("hello")


class Expensive(Plain):
    class Five(FuseboardThrottle):
        def cost_of(self, request: Request, view: APIView) -> int:
            return 5

        def tenant_of(self, request: Request, view: APIView) -> str | None:
            return "own"

        def subject_of(self, request: Request, view: APIView) -> Subject:
            return Subject()

    throttle_classes = (Five,)


class Escaping(Plain):
    def get(self, request: Request) -> Response:
        refused = Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN, retry_after_ms=4_000))
        if "chosen" in request.query_params:
            raise ValidationError("chosen") from refused
        raise refused


class Orders(ViewSet):
    authentication_classes = (ByHeader,)
    permission_classes = ()
    throttle_classes: tuple[type[FuseboardThrottle], ...] = (FuseboardThrottle,)

    def retrieve(self, request: Request, pk: str) -> Response:
        return Response(pk)


def tenant_of(request: Any) -> str | None:
    user = getattr(request, "user", None)
    return str(user.pk) if user is not None and user.is_authenticated else None


def early_tenant_of(request: Any) -> str | None:
    return str(request.headers.get("X-User", "")) or None


router = SimpleRouter()
router.register("orders", Orders, basename="order")
urlpatterns = [
    path("", Plain.as_view()),
    path("expensive", Expensive.as_view()),
    path("escaping", Escaping.as_view()),
    path("v1/", include(router.urls)),
]


@pytest.fixture
def guarded(limits: redis.Redis, redis_url: str, tmp_path: Path, settings: Any) -> Iterator[blocking.Agent]:
    tenants = {tier: TenantRecord(tier=tier) for tier in ("slots", "routes")}
    tenants["late-payer"] = TenantRecord(tier="free", suspended=True)
    publish(limits, RULES, revision=1, tenants=tenants)
    ours = blocking.Agent(settings=AgentSettings(redis_url=redis_url, server="web-1", state_dir=tmp_path))
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []
    settings.FUSEBOARD = {"TENANT": tenant_of, "AGENT": ours, "LEGACY_HEADERS": True}
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": "fuseboard.integrations.drf.exception_handler"}
    with ours:
        yield ours


def get(address: str = "/", user: str = "", method: str = "get", **headers: str) -> Any:
    client = Client(raise_request_exception=False, headers={"X-User": user} if user else {})
    return getattr(client, method)(address, **headers)


def test_the_quotas_of_the_authenticated_tenant_decide(guarded: blocking.Agent):
    answers = [get(user="acme") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[0].headers["RateLimit"] == '"requests";r=2'
    assert answers[0].headers["X-RateLimit-Remaining"] == "2"
    refused = answers[3]
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.headers["RateLimit-Policy"] == '"requests";q=3;w=60'
    assert f"Expected available in {refused.headers['Retry-After']} seconds" in refused.json()["detail"]
    assert get(user="other").status_code == 200


def test_callers_without_a_tenant_have_the_limits_of_their_login_and_address(
    guarded: blocking.Agent, settings: Any
):
    assert [get().status_code for _ in range(4)] == [200, 200, 200, 429]
    settings.FUSEBOARD = {"AGENT": guarded}
    assert get(user="ada", REMOTE_ADDR="2001:db8::1").status_code == 200
    assert get(user="ada", REMOTE_ADDR="2001:db8:1::1").status_code == 200
    assert get(user="ada", REMOTE_ADDR="2001:db8:2::1").status_code == 429


def test_a_view_can_have_its_own_tenant_and_cost(guarded: blocking.Agent):
    refused = get("/expensive")
    assert (refused.status_code, "Retry-After" in refused.headers) == (429, False)


def test_a_route_of_a_router_is_named_by_its_pattern(guarded: blocking.Agent):
    assert [get(f"/v1/orders/{number}/", user="routes").status_code for number in (1, 2)] == [200, 429]


def test_a_suspended_tenant_gets_a_403_with_the_problem(guarded: blocking.Agent):
    refused = get(user="late-payer")
    assert (refused.status_code, refused.json()["reason"]) == (403, "suspended")


def test_a_request_holds_its_slot_until_the_response_is_closed(guarded: blocking.Agent):
    freed: list[bool] = []

    def ended(**what: Any) -> None:
        freed.append(agent().admit_request("slots", wait_s=10).allowed)

    request_finished.connect(ended)
    try:
        assert get(user="slots").status_code == 200
    finally:
        request_finished.disconnect(ended)
    assert freed == [True]


@pytest.mark.parametrize("tenant", [early_tenant_of, tenant_of])
def test_with_the_middleware_a_request_is_charged_once(guarded: blocking.Agent, settings: Any, tenant: Any):
    """By the middleware if it knows the tenant, and otherwise by the throttle."""
    settings.MIDDLEWARE = ["fuseboard.integrations.django.FuseboardMiddleware"]
    settings.FUSEBOARD = {"TENANT": tenant, "AGENT": guarded}
    assert [get(user="acme").status_code for _ in range(4)] == [200, 200, 200, 429]


def test_a_preflight_costs_nothing(guarded: blocking.Agent):
    asks = {"HTTP_ORIGIN": "https://shop.example", "HTTP_ACCESS_CONTROL_REQUEST_METHOD": "GET"}
    assert {get(user="acme", method="options", **asks).status_code for _ in range(5)} == {200}
    assert get(user="acme").headers["RateLimit"] == '"requests";r=2'


def test_a_refusal_that_escapes_is_answered_and_one_that_a_view_answers_is_not(guarded: blocking.Agent):
    refused = get("/escaping")
    assert (refused.status_code, refused.headers["Content-Type"]) == (503, "application/problem+json")
    assert int(refused.headers["Retry-After"]) >= 4
    assert get("/escaping?chosen=1").status_code == 400


def test_an_invalid_cost_lets_the_request_pass(guarded: blocking.Agent, settings: Any, caplog: Any):
    settings.FUSEBOARD = {**settings.FUSEBOARD, "COST": lambda request: 0}
    assert [get(user="acme").status_code for _ in range(5)] == [200] * 5
