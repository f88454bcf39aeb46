"""Security finding 6: a token of pods can be bound to a service and to a prefix of names."""

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from controlplane.accounts.models import AgentToken
from controlplane.audit.models import Entry
from controlplane.gateway.postgres.loading import read
from tests.controlplane.calling import API
from tests.controlplane.gateway.manual_gateway import beat, known_tokens, post, ready_gateway
from tests.people import PASSWORD, create_person

WHY = {"reason": "for a test"}
NEW = {"name": "pods of the shop", "expires_in_s": 3_600, **WHY}


@pytest.mark.parametrize(
    ("service", "server", "field"),
    [("checkout", "shop-1", "service"), ("shop", "pay-1", "server"), ("shop", "shop-1", "")],
)
async def test_a_bound_token_is_refused_from_other_pods(service: str, server: str, field: str) -> None:
    gateway = ready_gateway()
    gateway.tokens.replace(
        {name: replace(token, service="shop", name_prefix="shop-") for name, token in known_tokens().items()}
    )
    answer = await post(gateway, beat(server, service=service))
    if not field:
        assert answer.status_code == 200
        return
    problem = answer.json()
    assert (answer.status_code, problem["field"]) == (403, field)
    assert "This token is for pods" in problem["detail"]
    assert not gateway.fleets


def test_the_api_binds_a_token_and_gateways_read_it(call: Any) -> None:
    made = call("admin", "POST", f"{API}/agent-tokens", NEW | {"service": "shop", "name_prefix": "shop-"})
    assert made.status_code == 201
    selector = made.json()["selector"]
    [listed] = [t for t in call("admin", "GET", f"{API}/agent-tokens").json() if t["selector"] == selector]
    assert (listed["service"], listed["name_prefix"]) == ("shop", "shop-")
    token = read({}, with_servers=False, gateway="test").tokens[selector]
    assert (token.service, token.name_prefix) == ("shop", "shop-")
    after = Entry.objects.filter(action="agent_token.created").latest("id").after
    assert (after["service"], after["name_prefix"]) == ("shop", "shop-")
    # A replacement has the same bounds.
    rotated = call("admin", "POST", f"{API}/agent-tokens/{selector}/rotate", {"expires_in_s": 3_600, **WHY})
    row = AgentToken.objects.get(selector=rotated.json()["selector"])
    assert (row.service, row.name_prefix) == ("shop", "shop-")


@pytest.mark.parametrize("bad", [{"service": "The Shop"}, {"name_prefix": "-shop"}, {"name_prefix": "a b"}])
def test_a_binding_that_no_pod_can_meet_is_refused(call: Any, bad: dict[str, str]) -> None:
    assert call("admin", "POST", f"{API}/agent-tokens", NEW | bad).status_code == 422


def test_the_command_binds_a_token(production: str) -> None:
    call_command("create_agent_token", "shop", service="shop", name_prefix="shop-", stdout=StringIO())
    row = AgentToken.objects.get(name="shop")
    assert (row.service, row.name_prefix) == ("shop", "shop-")


def test_the_page_of_tokens_binds_one_and_displays_its_bounds(
    production: str, client: Any, settings: Any
) -> None:
    settings.SECURE_SSL_REDIRECT = False
    create_person("ada")
    client.login(username="ada", password=PASSWORD)
    form = {"act": "agent", "name": "shop", "environment": "production", "days": "30", **WHY}
    page = client.post("/tokens", form | {"service": "shop", "name_prefix": "shop-"})
    assert page.status_code == 200
    row = AgentToken.objects.get(name="shop")
    assert (row.service, row.name_prefix) == ("shop", "shop-")
    assert "service shop" in client.get("/tokens").content.decode()
