"""Explains refused requests by their tokens."""

from django.http import HttpRequest
from django.utils import timezone
from ninja import Router

from controlplane.api.http.auth import caller_of
from controlplane.api.http.idempotency import changes_nothing
from controlplane.api.schemas.edits_in import Environment
from controlplane.api.schemas.refusals import (
    ChangeSinceOut,
    ExplainedOut,
    ExplainIn,
    RefusalRuleOut,
    ThenOrNowOut,
    TransitionThenOut,
)
from controlplane.policies.document import environment_of
from controlplane.refusals.explain import Explanation, explain
from controlplane.refusals.tries import take_try

router = Router()


@router.post("/explain", response=ExplainedOut)
@changes_nothing
def explain_refusal(request: HttpRequest, environment: Environment, values: ExplainIn) -> ExplainedOut:
    """Explain the token of a refusal: the rule then and now, who changed it since, the pod, and the mode.

    At most 20 tries per minute and caller. 404: not a token of this environment. 410: it has expired.
    """
    slug = environment_of(environment).slug
    take_try(caller_of(request))
    return _out(explain(values.token, {slug}, timezone.now(), tenant=values.tenant))


def _out(found: Explanation) -> ExplainedOut:
    rule = found.rule
    return ExplainedOut(
        **{name: getattr(found, name) for name in _SAME},
        reason=found.reason,
        mode=found.mode,
        rule=RefusalRuleOut.from_orm(rule) if rule is not None else None,
        tenant=found.tenant.name,
        tenant_state=found.tenant.state,
        then=ThenOrNowOut.from_orm(found.then),
        now=ThenOrNowOut.from_orm(found.now),
        changes=[ChangeSinceOut.from_orm(change) for change in found.changes],
        transition=TransitionThenOut.from_orm(found.transition) if found.transition else None,
    )


_SAME = (
    "environment",
    "service",
    "at",
    "retry_after_ms",
    "pod",
    "known_revision",
    "headline",
    "sentences",
)
