"""Alert rules of an environment: what is in force, what an admin changed, and what a change would mean."""

from typing import Annotated, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema
from pydantic import Field

from controlplane.alerts.people.rule_edits import (
    LONGEST_FOR_S,
    LONGEST_KEEP_S,
    LONGEST_NOTE,
    MIN_CLEAR_PERCENT,
    RuleInForce,
    RuleValues,
    preview_rule,
    rules_in_force,
    set_rule,
)
from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.idempotency import changes_nothing
from controlplane.api.http.versions import version_read
from controlplane.api.schemas.edits_in import Environment, ExpectedVersion, Reason, Slug, Strict
from controlplane.errors import NotFound

router = Router()


class AlertRuleValuesIn(Strict):
    #: In the unit of the rule. Null for the default, as the other fields.
    warning: Annotated[float, Field(ge=0, le=1_000_000)] | None = None
    critical: Annotated[float, Field(ge=0, le=1_000_000)] | None = None
    #: An alert that fires ends at this percentage of its threshold. Not for counts and days.
    clear_percent: Annotated[int, Field(ge=MIN_CLEAR_PERCENT, le=100)] | None = None
    #: How long the condition must last before the alert fires, and be gone before it clears.
    for_s: Annotated[int, Field(ge=0, le=LONGEST_FOR_S)] | None = None
    keep_s: Annotated[int, Field(ge=0, le=LONGEST_KEEP_S)] | None = None
    level: Annotated[int, Field(ge=1, le=3)] | None = None
    enabled: bool = True
    note: Annotated[str, Field(max_length=LONGEST_NOTE)] = ""


class AlertRuleIn(AlertRuleValuesIn):
    expected_version: ExpectedVersion | None = None
    reason: Reason


class AlertRuleOut(Schema):
    rule: str
    #: The version of its values: it differs after each change.
    version: int
    severities: list[Literal["warning", "critical"]]
    level: int
    for_s: float
    keep_s: float
    enabled: bool
    note: str
    #: Null for a rule about a state, which is there or not.
    warning: float | None
    critical: float | None
    unit: str
    compare: Literal["more than", "at least", "less than"]
    #: An alert that fires ends at this percentage of its threshold.
    clear_percent: int
    #: Whether something differs from the default.
    changed: bool
    #: Only the note can change, because gateways apply the rule without Postgres.
    fixed: bool


class FindingOut(Schema):
    key: str
    severity: Literal["warning", "critical"]
    text: str


class AlertRulePreviewOut(Schema):
    #: Alerts that are not resolved.
    open: list[FindingOut]
    #: Findings that only these values would make now, and findings that they would end.
    begins: list[FindingOut]
    ends: list[FindingOut]
    #: Alerts that fired in the last 30 days.
    fired: int
    #: Alerts that would have fired in the last `history_h` hours. Null if no figure of the rule is stored.
    would_have_fired: int | None
    #: Alerts that would have fired in that time with the values in force.
    would_have_fired_as_set: int | None
    history_h: int


def _out(one: RuleInForce) -> AlertRuleOut:
    settings = one.settings
    threshold = settings.threshold

    def shown(limit: float | None) -> float | None:
        return None if limit is None else float(f"{limit * threshold.scale:.10g}")

    return AlertRuleOut(
        rule=one.key,
        version=one.version,
        severities=list(one.severities),
        level=settings.timing.level,
        for_s=settings.timing.fires_after_s,
        keep_s=settings.timing.resolves_after_s,
        enabled=settings.enabled,
        note=settings.note,
        warning=shown(threshold.warning),
        critical=shown(threshold.critical),
        unit=threshold.unit if threshold.words else "",
        compare=threshold.compare,
        clear_percent=threshold.clear_percent,
        changed=one.changed,
        fixed=one.fixed,
    )


@router.get("", response=list[AlertRuleOut], auth=needs("view"))
def list_rules(request: HttpRequest, environment: Environment) -> list[AlertRuleOut]:
    """Every alert rule, as it is in force."""
    return [_out(one) for one in rules_in_force(environment)]


@router.get("/{rule}", response=AlertRuleOut, auth=needs("view"))
def get_rule(
    request: HttpRequest, response: HttpResponse, environment: Environment, rule: Slug
) -> AlertRuleOut:
    """One alert rule, with its version as `ETag`."""
    found = next((one for one in rules_in_force(environment) if one.key == rule), None)
    if found is None:
        raise NotFound("alert rule", rule)
    response["ETag"] = f'"{found.version}"'
    return _out(found)


@router.put("/{rule}", response=AlertRuleOut, auth=needs("change_alert_rules"))
def change_rule(
    request: HttpRequest, response: HttpResponse, environment: Environment, rule: Slug, values: AlertRuleIn
) -> AlertRuleOut:
    """Replace what differs from the defaults. Open alerts are judged by it, and not sent again.

    Without the version that you have read, the response is 428. If another person changed the rule since,
    it is 409 with the values that are in force now.
    """
    changed = set_rule(
        environment=environment,
        rule=rule,
        values=RuleValues(**values.dict(exclude={"reason", "expected_version"})),
        reason=values.reason,
        actor=actor_of(request),
        expected_version=version_read(request, values.expected_version),
    )
    response["ETag"] = f'"{changed.version}"'
    return _out(changed)


@router.post("/{rule}/preview", response=AlertRulePreviewOut, auth=needs("change_alert_rules"))
@changes_nothing
def preview(
    request: HttpRequest, environment: Environment, rule: Slug, values: AlertRuleValuesIn
) -> AlertRulePreviewOut:
    """What a change would mean now, and would have meant in the recorded past. Nothing is changed."""
    found = preview_rule(environment=environment, rule=rule, values=RuleValues(**values.model_dump()))
    return AlertRulePreviewOut.model_validate(found)
