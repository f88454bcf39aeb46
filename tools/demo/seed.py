"""The initial data of the demo: a configuration, users, and a token for the pods.

Written once; later starts keep the edits made since. Only the passwords and the pods' token are
new each time.
"""

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.accounts.models import AgentToken, Role, User
from controlplane.accounts.tokens import create_agent_token, revoke_token
from controlplane.audit.actor import Actor
from controlplane.audit.record import acting
from controlplane.editing import edits
from controlplane.editing.plans import apply_plan, plan_from_document
from controlplane.policies.models import Dependency, Kind
from controlplane.policies.protection_presets import preset_of_kind
from fuseboard.contract.words import DEFAULT_ENVIRONMENT, Algorithm, FailurePolicy, Period
from tools.demo import model_scenario, scenario
from tools.demo.past import make_up, suggest

ENVIRONMENT = DEFAULT_ENVIRONMENT

DIRECTOR = Actor(name="demo", role="admin", origin="command")
_REASON = "Set up for the demo"
_TIMEOUT_MS, _MODEL_TIMEOUT_MS = 2_000, 30_000

#: The limit of vendors with a contract.
_CONTRACT = "contract"
#: The name of the pods' token.
_PODS = "demo pods"


@dataclass(frozen=True)
class Seeded:
    #: User name -> password.
    logins: Mapping[str, str]
    agent_token: str


def seed() -> Seeded:
    """Set up the database for the demo."""
    if not Dependency.objects.filter(environment=ENVIRONMENT, name=scenario.FLAKY).exists():
        with transaction.atomic():
            _configuration()
        make_up(ENVIRONMENT)
        flaky = next(one for one in scenario.DEPENDENCIES if one.name == scenario.FLAKY)
        if flaky.vendor_limit is not None:
            stated = flaky.vendor_limit * 3 // 4
            suggest(ENVIRONMENT, flaky.name, _CONTRACT, number=stated)
    return Seeded(logins=_people(), agent_token=_token())


def _configuration() -> None:
    edits.create_environment(environment=ENVIRONMENT, reason=_REASON, actor=DIRECTOR)
    edits.set_tuning(environment=ENVIRONMENT, tuning=scenario.TUNING, reason=_REASON, actor=DIRECTOR)
    edits.set_pod_protection(
        environment=ENVIRONMENT,
        protection={"shedding": {}},
        observe_for_s={"shedding": scenario.OBSERVE_SHEDDING_S},
        reason=_REASON,
        actor=DIRECTOR,
    )
    for tier, quota in scenario.TIERS.items():
        edits.set_tier_quota(
            environment=ENVIRONMENT,
            tier=tier,
            quota=scenario.QUOTA,
            expected_version=None,
            reason=_REASON,
            actor=DIRECTOR,
            # The demo takes Redis away, and shows what each pod allows alone.
            failure_policy=FailurePolicy.LOCAL_SHARE,
            **asdict(quota),
        )
    tenants = [(tenant.key, tenant.tier, tenant.title) for tenant in scenario.TENANTS]
    rows = {key: {"tier": tier, "title": title} for key, tier, title in (*tenants, *scenario.RESERVED)}
    apply_plan(
        environment=ENVIRONMENT,
        plan=plan_from_document({"tenants": rows}),
        expected_revision=None,
        reason=_REASON,
        actor=DIRECTOR,
    )
    edits.set_tenant_quota(
        environment=ENVIRONMENT,
        tenant=scenario.STORYTELLER,
        quota=scenario.QUOTA,
        expected_version=None,
        reason=_REASON,
        actor=DIRECTOR,
        **asdict(scenario.UNLIMITED),
    )
    for dependency in scenario.DEPENDENCIES:
        _dependency(dependency)
    _models()


def _dependency(played: scenario.Dependency) -> None:
    edits.create_dependency(
        environment=ENVIRONMENT,
        dependency=played.name,
        kind=played.kind,
        title=played.title,
        owner=played.owner,
        fallback_note=played.fallback,
        timeout_ms=_TIMEOUT_MS,
        protection=preset_of_kind(played.kind, timeout_ms=_TIMEOUT_MS) if played.protected else None,
        runbook=played.runbook,
        breaker=played.breaker,
        reason=_REASON,
        actor=DIRECTOR,
    )
    if played.vendor_limit is not None:
        edits.set_vendor_limit(
            environment=ENVIRONMENT,
            dependency=played.name,
            name=_CONTRACT,
            limit=played.vendor_limit,
            window_s=1,
            failure_policy=FailurePolicy.LOCAL_SHARE,
            expected_version=None,
            reason=_REASON,
            actor=DIRECTOR,
        )
    if played.paid_per_day is not None:
        edits.set_vendor_limit(
            environment=ENVIRONMENT,
            dependency=played.name,
            name="per-day",
            limit=played.paid_per_day,
            window_s=86_400,
            algorithm=Algorithm.FIXED_WINDOW,
            period=Period.DAY,
            warn_percent=80,
            expected_version=None,
            reason=_REASON,
            actor=DIRECTOR,
        )


def _models() -> None:
    """Pools, accounts, models with prices, and budgets."""
    usual: dict[str, Any] = {"environment": ENVIRONMENT, "reason": _REASON, "actor": DIRECTOR}
    for pool in model_scenario.POOLS:
        edits.create_dependency(
            dependency=pool.name,
            kind=Kind.LLM,
            title=pool.title,
            owner="assistant-team",
            fallback_note=pool.fallback,
            protection=preset_of_kind(Kind.LLM, timeout_ms=_MODEL_TIMEOUT_MS),
            timeout_ms=_MODEL_TIMEOUT_MS,
            runbook="vendor-429",
            breaker=model_scenario.BREAKER,
            **usual,
        )
        for measure, limit in pool.per_minute.items():
            edits.set_vendor_limit(
                dependency=pool.name,
                name=f"{measure}-per-minute".replace("_", "-"),
                limit=limit,
                window_s=60,
                measure=measure,
                failure_policy=FailurePolicy.LOCAL_SHARE,
                expected_version=None,
                **usual,
            )
    for account, pools in model_scenario.ACCOUNTS.items():
        edits.set_account(account=account, pools=pools, expected_version=None, **usual)
    for model in model_scenario.MODELS:
        edits.set_model(
            model=model.name,
            pool=model.pool,
            aliases=list(model.aliases),
            prices={model_scenario.PRICED_SINCE: model.price},
            expected_version=None,
            **usual,
        )
    for budget, fields in model_scenario.BUDGETS.items():
        edits.set_budget(budget=budget, expected_version=None, **fields, **usual)


def _people() -> dict[str, str]:
    """One user per role, with a new password at every start, so that no password is known in advance."""
    logins = {role: secrets.token_urlsafe(9) for role in Role.values}
    with transaction.atomic():
        acting(DIRECTOR)
        for role, password in logins.items():
            user, _ = User.objects.get_or_create(username=role, defaults={"role": role})
            user.set_password(password)
            user.save(update_fields=["password"])
    return logins


def _token() -> str:
    """A token for the pods, valid for 30 days; those of earlier demos are revoked."""
    old = AgentToken.objects.filter(name=_PODS, revoked_at__isnull=True)
    for selector in old.values_list("selector", flat=True):
        revoke_token(selector=selector, reason=_REASON, actor=DIRECTOR)
    return create_agent_token(
        environment=ENVIRONMENT,
        name=_PODS,
        # Longer than the time for which an alert warns of the end of a token.
        expires_at=timezone.now() + timedelta(days=30),
        reason=_REASON,
        actor=DIRECTOR,
    )
