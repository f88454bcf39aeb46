from collections.abc import Mapping

import msgspec
from django.db import transaction

from controlplane.audit.actor import Actor
from controlplane.audit.record import acting
from controlplane.editing.revise import revise
from controlplane.errors import InvalidEdit
from controlplane.policies.document import environment_of
from controlplane.policies.fields import environment_fields, tier_fields
from controlplane.policies.models import Environment, Tier, TierQuota
from controlplane.validation import Problems
from fuseboard.contract.policy import MAX_WAIT_MS, Tuning
from fuseboard.contract.words import FailurePolicy

#: Name, title, priority, calls per minute, burst. Unregistered tenants get the first one.
TIERS = (
    ("anonymous", "Anonymous", 10, 10, 5),
    ("free", "Free", 30, 100, 20),
    ("pro", "Pro", 60, 1_000, 100),
    ("enterprise", "Enterprise", 90, 10_000, 1_000),
)


def create_environment(*, environment: str, reason: str, actor: Actor) -> int:
    """Create an environment with the four default tiers. An existing one stays as it is."""
    problems = Problems()
    problems.slug("environment", environment)
    problems.reason(reason)
    problems.settle()
    existing = Environment.objects.filter(pk=environment).first()
    if existing is not None:
        return existing.revision
    with transaction.atomic():
        acting(actor)
        tiers = Tier.objects.bulk_create(
            # The environment is created below. Postgres checks foreign keys at commit.
            Tier(environment_id=environment, name=name, title=title, priority=priority)
            for name, title, priority, _, _ in TIERS
        )
        Environment.objects.create(slug=environment, default_tier=tiers[0])
        TierQuota.objects.bulk_create(
            TierQuota(
                tier=tier,
                name="requests",
                limit=per_minute,
                window_s=60,
                burst=burst,
                failure_policy=FailurePolicy.FAIL_OPEN,
            )
            for tier, (_, _, _, per_minute, burst) in zip(tiers, TIERS, strict=True)
        )
        with revise(environment=environment, actor=actor, reason=reason) as revision:
            revision.audit(
                "environment.created",
                target_kind="environment",
                target_name=environment,
                before=None,
                after={"default_tier": tiers[0].name, "tiers": ", ".join(tier.name for tier in tiers)},
            )
            created = environment_fields(environment_of(environment))
            revision.change("environment", environment, before=None, after=created)
            for tier in tiers:
                revision.change("tier", tier.name, before=None, after=tier_fields(tier))
    return revision.number


def set_tuning(*, environment: str, tuning: Mapping[str, int], reason: str, actor: Actor) -> int:
    """Change the given fields of ``fuseboard.contract.policy.Tuning`` for the whole fleet."""
    problems = Problems()
    problems.reason(reason)
    for field, value in tuning.items():
        if field not in Tuning.__struct_fields__:
            problems.add(field, "There is no such setting.")
            continue
        try:
            msgspec.convert({field: value}, Tuning)
        except msgspec.ValidationError as error:
            problems.add(field, str(error).partition(" - at ")[0])
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        row = environment_of(environment)
        whole = environment_fields(row)
        before = dict(row.tuning)
        row.tuning = {**before, **tuning}
        row.save(update_fields=["tuning"])
        revision.audit(
            "tuning.set", target_kind="environment", target_name=environment, before=before, after=row.tuning
        )
        revision.change("environment", environment, before=whole, after=environment_fields(row))
    return revision.number


def set_default_tier(*, environment: str, tier: str, reason: str, actor: Actor) -> int:
    """Choose the tier of unregistered tenants."""
    problems = Problems()
    problems.reason(reason)
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        row = Environment.objects.select_related("default_tier").get(pk=environment)
        chosen = Tier.objects.filter(environment=row, name=tier).first()
        if chosen is None:
            raise InvalidEdit({"tier": [f"There is no tier {tier!r}."]})
        before = {"default_tier": row.default_tier.name}
        whole = environment_fields(row)
        row.default_tier = chosen
        row.save(update_fields=["default_tier"])
        revision.audit(
            "default_tier.set",
            target_kind="environment",
            target_name=environment,
            before=before,
            after={"default_tier": tier},
        )
        revision.change("environment", environment, before=whole, after=environment_fields(row))
    return revision.number


def create_tier(
    *,
    environment: str,
    tier: str,
    title: str,
    priority: int,
    reason: str,
    actor: Actor,
    wait_ms: int = 0,
) -> int:
    problems = Problems()
    problems.slug("tier", tier)
    problems.text("title", title, 200)
    problems.whole("priority", priority, 0, 100)
    problems.whole("wait_ms", wait_ms, 0, MAX_WAIT_MS)
    problems.reason(reason)
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        row, created = Tier.objects.get_or_create(
            environment_id=environment,
            name=tier,
            defaults={"title": title, "priority": priority, "wait_ms": wait_ms},
        )
        if not created:
            raise InvalidEdit({"tier": ["A tier with this name already exists."]})
        revision.audit(
            "tier.created",
            target_kind="tier",
            target_name=tier,
            before=None,
            after={"title": row.title, "priority": row.priority, "version": row.version},
        )
        revision.change("tier", tier, before=None, after=tier_fields(row))
    return revision.number
