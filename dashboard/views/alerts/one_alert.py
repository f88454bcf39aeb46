"""One alert: the figure that was evaluated, its thresholds, and the turns of its state."""

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require
from controlplane.alerts.models import Alert, Evaluation
from controlplane.alerts.rules.every import RULE_OF_KEY
from controlplane.alerts.rules.rule import rule_of
from controlplane.alerts.rules.settings import settings_of
from controlplane.alerts.state.stored_alerts import stored
from controlplane.policies.models import Environment
from dashboard.alert_plot import plot_of
from dashboard.live.alert_cards import line_of_stored
from dashboard.views.page import not_found, show


@require_GET
@require("view")
def alert(request: HttpRequest, number: int) -> HttpResponse:
    slug = environment_in(request)
    rows = Alert.objects.filter(environment=slug, pk=number).select_related("cause")
    row = rows.defer("cause__points", "cause__turns").first()
    if row is None:
        return not_found(request, "Alert not found", "Resolved alerts are kept for 90 days.")
    rule = RULE_OF_KEY.get(rule_of(row.key))
    changes = Environment.objects.filter(pk=slug).values_list("alert_rules", flat=True).first() or {}
    settings = settings_of(changes, row.key)
    end = row.resolved_at or timezone.now()
    found = stored(row)
    evaluation = Evaluation.objects.filter(environment=slug).first()
    return show(
        request,
        "alert",
        "alert.html",
        alert=found,
        # An alert that is over has the words of its worst moment.
        over=found.words != found.text and bool(found.worst_text),
        worst=row.worst,
        ended_at=found.clear_since or found.resolved_at or found.blind_since,
        evaluated_at=evaluation.at.timestamp() if evaluation is not None else None,
        # The page has the buttons of its card. A resolved alert has none.
        line=line_of_stored(slug, found, settings.timing) if row.resolved_at is None else None,
        describes=rule.describes if rule is not None else "",
        measured=rule is not None and rule.value is not None,
        timing=settings.timing,
        plot=plot_of(settings.threshold, row.points, row.turns, end.timestamp()),
    )
