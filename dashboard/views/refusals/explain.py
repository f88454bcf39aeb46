"""Explains a refusal that a customer reports, by its token."""

from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.page_addresses import links_into
from controlplane.refusals.explain import ChangeSince, Explanation, ThenOrNow
from controlplane.refusals.models import RefusalSample
from controlplane.refusals.samples import token_of
from controlplane.refusals.tokens import ExpiredToken, NotOurToken
from controlplane.refusals.tries import TooManyTries, take_try
from controlplane.status.refusals import explained
from dashboard.environments import environments_of
from dashboard.links import limit_editor
from dashboard.live.charts import SPANS
from dashboard.live.refusal_charts import charts_of_refusal, range_around
from dashboard.views.editor.edit_request import KINDS
from dashboard.views.page import bounded_text, context_of
from dashboard.words.change_words import ChangeWords, change_words

_STATUS = {NotOurToken: 404, ExpiredToken: 410, TooManyTries: 429}


@never_cache
@require_http_methods(["GET", "POST"])
@require("view")
def explain_token(request: HttpRequest) -> HttpResponse:
    """A form for a token; with POST, what the token means. A token never stands in an address."""
    if request.method == "GET":
        return _page(request)
    token, tenant = bounded_text(request.POST, "token", most=300), bounded_text(request.POST, "tenant")
    return _explained(request, token, tenant)


@never_cache
@require_GET
@require("view")
def explain_sample(request: HttpRequest, number: int) -> HttpResponse:
    """Explain a sample of the log, as its token would be explained."""
    sample = RefusalSample.objects.filter(
        environment=environment_in(request), pk=min(number, 2**63 - 1)
    ).first()
    if sample is None:
        raise Http404("There is no such sample. Samples are deleted after a day.")
    return _explained(request, token_of(sample), sample.tenant)


def _explained(request: HttpRequest, token: str, tenant: str) -> HttpResponse:
    try:
        take_try(f"user:{request.user.get_username()}")
        found = explained(token, set(environments_of(request.user)), timezone.now(), tenant=tenant)
    except (NotOurToken, ExpiredToken, TooManyTries) as error:
        return _page(request, status=_STATUS[type(error)], errors=[str(error)], token=token, tenant=tenant)
    if found.environment != environment_in(request):
        # Its page there explains it, with links into its environment. The token stays out of the address.
        with links_into(found.environment):
            return redirect("explain", preserve_request=True)
    return _page(
        request,
        token=token,
        tenant=tenant,
        found=found,
        now_differs=_differs(found.then, found.now),
        then_place=_place_of(request, found.then),
        now_place=_place_of(request, found.now),
        changes=[(change, _words(change)) for change in found.changes],
        rule_href=_rule_href(request, found),
        edit_href=_edit_href(request, found),
        charts=charts_of_refusal(found),
        chart_spans=SPANS,
        chart_home=[str(second) for second in range_around(found.at, timezone.now())],
        charts_title="Around the refusal",
        became=found.transition.to_state.replace("_", "-") if found.transition else "",
    )


def _page(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    context = context_of(request, "explain", **extra)
    return render(request, "dashboard/explain.html", context, status=status)


def _words(change: ChangeSince) -> list[ChangeWords]:
    """The change in words; only the rate of a limit that was created."""
    return [line for line in change_words(change.as_changed()) if line.before or "," not in line.name]


def _differs(then: ThenOrNow, now: ThenOrNow) -> bool:
    compared = attrgetter("limit", "kind", "name", "tier", "suspended")
    return bool(compared(then) != compared(now))


def _place_of(request: HttpRequest, at: ThenOrNow) -> str:
    """The page of the thing that has the rule, for this reader."""
    if at.kind == "tenant":
        return reverse("tenant", query={"key": at.name})
    if at.kind == "budget":
        return reverse("money_budget", args=[at.name])
    if at.kind == "account":
        return reverse("vendor_account", args=[at.name])
    if at.kind == "dependency":
        return reverse("breaker", args=[at.name])
    if at.kind == "tier":
        edits = may(request.user, "edit_quota", environment_in(request))
        return (
            f"{reverse('edit', args=['tier'])}?{urlencode({'key': at.name})}" if edits else reverse("tiers")
        )
    if at.kind == "environment":
        return reverse("tiers")
    return ""


def _rule_href(request: HttpRequest, found: Explanation) -> str:
    """Where the rule is now; an own quota is edited on the page of its tenant."""
    rule, now = found.rule, found.now
    if rule is None:
        return ""
    if now.kind == "tenant" and rule.limit:
        return reverse("tenant", query={"key": now.name, "quota": rule.limit})
    return _place_of(request, now)


def _edit_href(request: HttpRequest, found: Explanation) -> str:
    """The field of the limit in the editor of the thing that has it now, for readers who can edit it."""
    rule, now = found.rule, found.now
    if rule is None or not rule.limit or now.kind not in KINDS:
        return ""
    if not may(request.user, KINDS[now.kind].permission, environment_in(request)):
        return ""
    return limit_editor(now.kind, now.name, rule.limit)
