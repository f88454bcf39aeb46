from collections.abc import Mapping

from django.db import transaction

from controlplane.audit.actor import Actor
from controlplane.audit.record import acting
from controlplane.editing.edits.edit_entity import EntityEdit, save_call, section_of
from controlplane.editing.plans.schema import tuning_errors
from controlplane.editing.revise import revise
from controlplane.errors import InvalidEdit
from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields, environment_fields, tier_fields
from controlplane.policies.models import Environment, Tier, TierQuota
from controlplane.validation import Problems, check_reason
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
    check_reason(reason)
    if wrong := tuning_errors(tuning, "There is no such setting."):
        raise InvalidEdit({field: [message] for field, message in wrong.items()})
    edit = EntityEdit(environment, "environment", environment, typed={"tuning": dict(tuning)})
    return save_call(edit, reason=reason, actor=actor, action="tuning.set", audited=_tuning)


def set_default_tier(*, environment: str, tier: str, reason: str, actor: Actor) -> int:
    """Choose the tier of unregistered tenants."""
    edit = EntityEdit(environment, "environment", environment, typed={"default_tier": tier})
    missing = {"default_tier": InvalidEdit({"tier": [f"There is no tier {tier!r}."]})}
    return save_call(
        edit,
        reason=reason,
        actor=actor,
        action="default_tier.set",
        audited=section_of("default_tier"),
        refers=missing,
    )


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
    typed = {"title": title, "priority": priority, "wait_ms": wait_ms}
    edit = EntityEdit(environment, "tier", tier, typed=typed, creates=True)
    return save_call(edit, reason=reason, actor=actor, action="tier.created")


def _tuning(fields: Fields) -> Fields:
    return {field.partition(".")[2]: value for field, value in section_of("tuning")(fields).items()}
