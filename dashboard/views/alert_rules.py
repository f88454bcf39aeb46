"""Alert rules: what is in force, and a form that changes one, with what the change would mean."""

from math import isfinite
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.alerts.people.rule_edits import (
    LONGEST_NOTE,
    PAST_DAYS,
    RuleInForce,
    RuleValues,
    preview_rule,
    rules_in_force,
    set_rule,
)
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from dashboard.forms import whole
from dashboard.reader import actor_of
from dashboard.views.page import bounded_text, context_of

_LEVELS = (("1", "1: handled automatically"), ("2", "2: people on call"))
_CONFLICT = "{by} changed this rule meanwhile. The list has the new values. Save again to replace them."
_WHOLE = ("clear_percent", "for_s", "keep_s", "level")
_FIELDS = ("warning", "critical", *_WHOLE)


@require_http_methods(["GET", "POST"])
@require("view")
def alert_rules(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return _page(request)
    if not may(request.user, "change_alert_rules", environment_in(request)):
        raise PermissionDenied("This needs the role admin.")
    try:
        return _act(request)
    except InvalidEdit as error:
        return _page(request, errors=error.errors, status=422)
    except EditConflict as conflict:
        return _page(request, conflict=conflict, status=409)
    except NotFound as missing:
        return _page(request, errors={"rule": [str(missing)]}, status=404)


def _act(request: HttpRequest) -> HttpResponse:
    typed = request.POST
    environment, rule = environment_in(request), bounded_text(typed, "rule", most=64)
    reset = typed.get("act") == "reset"
    values = RuleValues() if reset else _values(typed)
    match typed.get("act", ""):
        case "preview":
            preview = preview_rule(environment=environment, rule=rule, values=values)
            return _page(request, preview=preview)
        case "save" | "reset":
            set_rule(
                environment=environment,
                rule=rule,
                values=values,
                reason=typed.get("reason", ""),
                actor=actor_of(request),
                expected_version=whole(typed["version"], "version") if "version" in typed else None,
            )
            done = "follows its defaults again" if reset else "was changed"
            messages.success(request, f"Rule {rule} {done}. The next evaluation applies it.")
        case _:
            raise InvalidEdit({"act": ["Choose an action."]})
    return redirect("alert_rules")


def _values(typed: QueryDict) -> RuleValues:
    texts = {name: bounded_text(typed, name, most=20).strip() for name in _FIELDS}
    return RuleValues(
        warning=_number(texts["warning"], "warning"),
        critical=_number(texts["critical"], "critical"),
        **{name: whole(texts[name], name) if texts[name] else None for name in _WHOLE},
        enabled=typed.get("enabled") == "on",
        note=bounded_text(typed, "note", most=LONGEST_NOTE + 1),
    )


def _number(text: str, field: str) -> float | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise InvalidEdit({field: ["Enter a number, such as 2 or 0.5, or leave it empty for the default."]})
    return number


def _page(
    request: HttpRequest,
    *,
    preview: Any = None,
    errors: dict[str, list[str]] | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    environment = environment_in(request)
    rows = rules_in_force(environment)
    if conflict is not None:
        errors = {"version": [_CONFLICT.format(by=conflict.by or "Another person")]}
    context = context_of(request, "alert_rules", errors=errors)
    chosen = request.POST.get("rule") or request.GET.get("edit")
    row = next((row for row in rows if row.key == chosen), None)
    context |= {
        "rows": rows,
        "row": row,
        "form": _form(request, row) if row is not None else None,
        # After a conflict, the person has seen what is in force.
        "version": None if row is None or conflict is not None else request.POST.get("version"),
        "preview": preview,
        "past_days": PAST_DAYS,
        "levels": _LEVELS,
        "changes_rules": may(request.user, "change_alert_rules", environment),
    }
    return render(request, "dashboard/alert_rules.html", context, status=status)


def _form(request: HttpRequest, row: RuleInForce) -> dict[str, Any]:
    """What was typed, or what is in force. The default is the hint of each field."""
    timing, threshold = row.settings.timing, row.settings.threshold
    default = row.default
    form: dict[str, Any] = {
        "warning": "" if threshold.warning is None else f"{threshold.warning * threshold.scale:.10g}",
        "critical": "" if threshold.critical is None else f"{threshold.critical * threshold.scale:.10g}",
        "clear_percent": str(threshold.clear_percent),
        "for_s": f"{timing.fires_after_s:.10g}",
        "keep_s": f"{timing.resolves_after_s:.10g}",
        "level": str(timing.level),
        "enabled": row.settings.enabled,
        "note": row.settings.note,
        "usual_clear": f"Default: {default.threshold.clear_percent} %",
        "usual_for": f"Default: {default.timing.fires_after_s:.10g} s",
        "usual_keep": f"Default: {default.timing.resolves_after_s:.10g} s",
        "usual_level": f"Default: {default.timing.level}",
        "usual_warning": f"Default: {default.threshold.shown('warning')}",
        "usual_critical": f"Default: {default.threshold.shown('critical')}",
    }
    if request.method == "POST":
        form |= {name: request.POST.get(name, "") for name in (*_FIELDS, "note", "reason")}
        form["enabled"] = request.POST.get("enabled") == "on"
    return form
