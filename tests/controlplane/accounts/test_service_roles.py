"""A role for one service covers the dependencies that the service owns and its pods, and nothing else."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.accounts import people, tokens
from controlplane.accounts.claims import believed, renew
from controlplane.accounts.models import User
from controlplane.accounts.permissions import (
    ACTIONS,
    OF_SERVICE,
    covered,
    may,
    may_for_some,
    role_of,
    roles_of,
    services_of,
)
from controlplane.audit.models import Entry
from controlplane.breakers.models import Override
from controlplane.editing import edits
from controlplane.editing.plans import apply_plan, plan_from_document
from controlplane.errors import InvalidEdit
from controlplane.fleet.models import GatewayOrder, Server
from controlplane.policies.models import Dependency, Environment
from fuseboard.cli import main
from fuseboard.cli.ctl.exit_codes import Exit
from tests.controlplane.calling import API, problem, send
from tests.controlplane.web_process import web_running
from tests.people import ADA, SEED, VERA, create_people, create_person

WHY = {"reason": "for a test"}
OPEN = {"mode": "forced_open", "expires_in_s": 60, **WHY}


@pytest.fixture
def owned(production: str) -> str:
    """``openai`` is of service shop, ``maps`` of service routes; vera is a viewer and an admin for shop."""
    create_people("ada")
    create_person("vera", service_roles={"production": {"shop": "admin"}})
    Dependency.objects.filter(name="openai").update(owner="shop")
    edits.create_dependency(
        environment=production, dependency="maps", kind="external", owner="routes", actor=SEED, **WHY
    )
    return production


def vera(**fields: Any) -> User:
    return User(username="vera", role="viewer", **fields)


def of_shop(role: str) -> dict[str, Any]:
    return {"service_roles": {"production": {"shop": role}}}


def head() -> int:
    return Environment.objects.get(pk="production").revision


def test_a_role_for_a_service_covers_only_what_it_owns() -> None:
    operator = vera(**of_shop("operator"))
    assert may(operator, "override_breaker", "production", service="shop")
    assert not may(operator, "edit_breaker_policy", "production", service="shop")
    assert may(vera(**of_shop("admin")), "edit_breaker_policy", "production", service="shop")
    for service, environment in (("", "production"), ("routes", "production"), ("shop", "staging")):
        assert not may(operator, "override_breaker", environment, service=service)
    assert services_of(operator, "production") == (("shop", "operator"),)
    assert may_for_some(operator, "override_breaker", "production")
    assert not may_for_some(operator, "edit_breaker_policy", "production")


@pytest.mark.parametrize("action", sorted(ACTIONS.keys() - OF_SERVICE - {"view", "read_metrics"}))
def test_everything_else_is_decided_in_the_environment(action: str) -> None:
    admin = vera(**of_shop("admin"))
    assert not may(admin, action, "production", service="shop")
    assert not covered(services_of(admin, "production"), action)


def test_a_role_for_a_service_needs_a_role_in_the_environment_and_lowers_none() -> None:
    shut_out = vera(environment_roles={"production": ""}, **of_shop("admin"))
    assert not may(shut_out, "override_breaker", "production", service="shop")
    assert services_of(shut_out, "production") == ()
    away = vera(is_active=False, **of_shop("admin"))
    assert not may(away, "override_breaker", "production", service="shop")
    higher = User(username="ada", role="admin", **of_shop("operator"))
    assert role_of(higher, "production", "shop") == "admin"
    assert services_of(higher, "production") == ()
    # A second factor is needed for the same roles.
    assert "admin" in roles_of(vera(**of_shop("admin")))


def test_the_session_keeps_the_roles_for_services_while_postgres_is_down() -> None:
    session: Any = {}
    renew(session, vera(**of_shop("operator")))
    user = believed(session, OSError("down"))
    assert may(user, "override_breaker", "production", service="shop")
    assert not may(user, "override_breaker", "production", service="routes")


def token(role: str = "admin") -> str:
    """A token that vera received while she was an admin."""
    return tokens.create_api_token(
        name="of vera", role=role, expires_at=timezone.now() + timedelta(hours=1), actor=VERA, **WHY
    )


#: Operations on a dependency, and what is allowed for its service.
ON_DEPENDENCY = [
    ("POST", "breakers/{}/override", OPEN),
    ("POST", "breakers/{}/extend", {"expires_in_s": 120, **WHY}),
    ("POST", "breakers/{}/end-override", WHY),
    ("POST", "breakers/{}/reset", WHY),
    ("POST", "breakers/{}/hold", OPEN),
    ("POST", "breakers/{}/release", WHY),
    ("PATCH", "dependencies/{}/breaker", {"breaker": {"probes": 2}, "expected_version": 1, **WHY}),
    (
        "PATCH",
        "dependencies/{}/protection",
        {"preset": {"sla": "api"}, "expected_version": 2, **WHY},
    ),
    (
        "PUT",
        "dependencies/{}/vendor-limits/contract",
        {"limit": 50, "window_s": 60, "burst": 1, "expected_version": 3, **WHY},
    ),
    ("DELETE", "dependencies/{}/vendor-limits/contract?reason=for+a+test&expected_version=4", None),
]


def test_the_api_lets_a_person_of_a_service_change_its_dependencies_only(owned: str) -> None:
    text = token()
    for method, path, body in ON_DEPENDENCY:
        refused = problem(send(text, method, f"{API}/{path.format('maps')}", body), 403)
        assert "owner, vera" in refused["detail"]
        assert send(text, method, f"{API}/{path.format('nothing')}", body).status_code == 403
        answer = send(text, method, f"{API}/{path.format('openai')}", body)
        assert answer.status_code == 200, (path, answer.content)
    assert not Override.objects.filter(dependency__name="maps").exists()
    held = Entry.objects.filter(action="breaker.held").latest("id")
    # The audit names the role that was used.
    assert (held.role, held.owner) == ("admin", "vera")


def test_a_token_has_no_more_for_a_service_than_its_own_role(owned: str) -> None:
    text = token("operator")
    assert send(text, "POST", f"{API}/breakers/openai/override", OPEN).status_code == 200
    policy = {"breaker": {"probes": 2}, "expected_version": 1, **WHY}
    problem(send(text, "PATCH", f"{API}/dependencies/openai/breaker", policy), 403)
    assert send(token("viewer"), "POST", f"{API}/breakers/openai/override", OPEN).status_code == 403
    elsewhere = tokens.create_api_token(
        name="staging",
        role="admin",
        environment=edits.create_environment(environment="staging", actor=SEED, **WHY) and "staging",
        expires_at=timezone.now() + timedelta(hours=1),
        actor=VERA,
        **WHY,
    )
    assert send(elsewhere, "POST", f"{API}/breakers/openai/override", OPEN).status_code == 403
    people.change_roles(
        username="vera", role="viewer", environment_roles={}, service_roles={}, actor=ADA, **WHY
    )
    assert send(text, "POST", f"{API}/breakers/openai/override", OPEN).status_code == 403


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "dependencies", {"name": "mine", "kind": "external", "owner": "shop", **WHY}),
        ("PUT", "dependencies/maps/description", {"owner": "shop", "expected_version": 1, **WHY}),
        ("PUT", "dependencies/openai/description", {"owner": "routes", "expected_version": 1, **WHY}),
        ("PUT", "dependencies/openai/description", {"title": "Mine", "expected_version": 1, **WHY}),
        ("PUT", "tenants/acme/quotas/requests", {"limit": 5, "window_s": 1, "burst": 5, **WHY}),
        ("PATCH", "configuration/protection", {"protection": {}, "expected_revision": 1, **WHY}),
        ("POST", "bulk/preview", {"filter": {"tier": "pro"}, "change": {"suspended": False}, **WHY}),
        ("POST", "plan", "dependencies: {openai: {title: Mine}}"),
        ("POST", "rollback", {"to_revision": 1, "expected_revision": 1, **WHY}),
        ("POST", "schedules", {"due_at": "2030-01-01T00:00:00Z", "document": {}, **WHY}),
        ("POST", "agent-tokens", {"name": "pods", "service": "shop", "expires_in_s": 3600, **WHY}),
        ("POST", "fleet/lift-freeze", WHY),
        ("GET", "export", None),
    ],
)
def test_the_api_refuses_what_is_decided_in_the_environment(
    owned: str, method: str, path: str, body: Any
) -> None:
    problem(send(token(), method, f"{API}/{path}", body), 403)
    assert Dependency.objects.get(name="openai").owner == "shop"


def test_the_api_reverts_what_changed_only_own_dependencies(owned: str) -> None:
    text = token()

    def policy(names: list[str], probes: int) -> int:
        plan = plan_from_document({"dependencies": {name: {"breaker": {"probes": probes}} for name in names}})
        return apply_plan(environment=owned, plan=plan, expected_revision=None, actor=ADA, **WHY)

    def revert(number: int, **more: Any) -> Any:
        preview = send(text, "POST", f"{API}/revisions/{number}/revert/preview", {**more, **WHY})
        made = send(
            text,
            "POST",
            f"{API}/revisions/{number}/revert",
            {"expected_revision": head(), **more, **WHY},
        )
        assert preview.status_code == made.status_code
        return made

    was = Dependency.objects.get(name="openai").probes
    other, both, own = policy(["maps"], 2), policy(["maps", "openai"], 4), policy(["openai"], 5)
    assert "owner, vera" in problem(revert(other), 403)["detail"]
    assert (
        problem(revert(both), 403)["detail"] == "It also changes dependency maps, which needs the role admin."
    )
    assert revert(own).status_code == 200
    entry = Entry.objects.latest("id")
    assert (entry.action, entry.role, entry.owner) == ("revision.reverted", "admin", "vera")
    assert revert(both, things=[{"kind": "dependency", "name": "openai"}]).status_code == 200
    assert Dependency.objects.get(name="openai").probes == was
    assert Dependency.objects.get(name="maps").probes == 4
    assert problem(revert(999_999), 403)


def test_texts_of_a_dependency_can_be_changed_while_its_owner_stays(owned: str) -> None:
    body = {"title": "Models", "owner": "shop", "expected_version": 1, **WHY}
    answer = send(token(), "PUT", f"{API}/dependencies/openai/description", body)
    assert answer.status_code == 200, answer.content
    assert Dependency.objects.get(name="openai").title == "Models"


def test_pods_of_the_service_can_be_forgotten(owned: str) -> None:
    for name, service in (("shop-1", "shop"), ("routes-1", "routes")):
        Server.objects.create(
            environment="production",
            name=name,
            service=service,
            boot="0123456789abcdef",
            agent_version="0.2.0",
            state="online",
            mode="shared",
            config_status="applied",
            config_source="http",
            **dict.fromkeys(("mode_since", "started_at", "last_seen_at", "due_at"), datetime.now(UTC)),
        )
    text = token("operator")
    problem(send(text, "POST", f"{API}/servers/routes-1/forget", WHY), 403)
    problem(send(text, "POST", f"{API}/servers/none/forget", WHY), 403)
    assert send(text, "POST", f"{API}/servers/shop-1/forget", WHY).status_code == 200
    assert [order.server for order in GatewayOrder.objects.all()] == ["shop-1"]


def test_a_lost_ownership_ends_the_right(owned: str) -> None:
    Dependency.objects.filter(name="openai").update(owner="shop team")
    problem(send(token(), "POST", f"{API}/breakers/openai/override", OPEN), 403)


def test_ctl_is_refused_for_the_breaker_of_another_service(
    owned: str,
    django_db_setup: Any,
    redis_url: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FUSEBOARD_API_TOKEN", token())
    with web_running(tmp_path_factory.mktemp("web")) as processes:
        monkeypatch.setenv("FUSEBOARD_API_URL", processes.by_name["web"].url)
        command = ["ctl", "override", "--mode", "forced_open", "--for", "5m", "--reason", "for a test"]
        assert main([*command, "openai"]) == Exit.DONE
        assert main([*command, "maps"]) == Exit.FORBIDDEN
    assert "no more rights than its owner, vera" in capsys.readouterr().err
    assert [held.dependency.name for held in Override.objects.all()] == ["openai"]


def test_roles_for_services_are_checked_and_audited(owned: str) -> None:
    def change(service_roles: Any) -> None:
        people.change_roles(
            username="vera",
            role="viewer",
            environment_roles={},
            service_roles=service_roles,
            actor=ADA,
            **WHY,
        )

    too_many = {"production": {f"s{number}": "operator" for number in range(people.MAX_SERVICES + 1)}}
    for wrong, part in (
        ({"nowhere": {"shop": "operator"}}, "no environment nowhere"),
        ({"production": {"shop team": "operator"}}, "the name that pods"),
        ({"production": {"shop": "viewer"}}, "operator, admin"),
        (too_many, "at most 20 services"),
    ):
        with pytest.raises(InvalidEdit, match=part):
            change(wrong)
    change({"production": {"routes": "operator"}})
    entry = Entry.objects.filter(action="user.role_changed").latest("id")
    assert entry.before is not None
    assert entry.after is not None
    assert entry.before["role in production for shop"] == "admin"
    assert entry.after["role in production for routes"] == "operator"
    # An old client does not send them: they stay.
    change(None)
    assert User.objects.get(username="vera").service_roles == {"production": {"routes": "operator"}}


def test_the_api_of_people_has_roles_for_services(call: Any, owned: str) -> None:
    body = {"role": "viewer", "service_roles": {"production": {"routes": "operator"}}, **WHY}
    assert call("admin", "PUT", "/api/v1/people/vera/roles", body).status_code == 200
    found = {person["username"]: person for person in call("admin", "GET", "/api/v1/people").json()}
    assert found["vera"]["service_roles"] == {"production": {"routes": "operator"}}
    body["service_roles"] = {"production": {"routes": "viewer"}}
    problem(call("admin", "PUT", "/api/v1/people/vera/roles", body), 422)
