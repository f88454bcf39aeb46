"""The form of a new budget: a calendar limit of a tenant, of the tenants of a tier, or of a dependency."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import check, environment_in, require
from controlplane.editing import edits
from controlplane.errors import EditError, InvalidEdit
from controlplane.policies.limits import BUDGET_POLICY, VENDOR_DEFAULTS
from controlplane.policies.models import Dependency, Tenant, TenantQuota, Tier, TierQuota, VendorLimit
from dashboard.edit_form import EditForm, Errors, run_edit
from dashboard.forms import TextField, WholeNumberField
from dashboard.undo import saved_at
from dashboard.views.page import choices_of, names_of, show, text_parameter
from dashboard.words.limit_values import bounds_of
from fuseboard.contract.words import Algorithm

#: Kind of owner -> the right that a budget of it needs.
_RIGHTS = {"tenant": "edit_tenant", "tier": "edit_quota", "dependency": "edit_breaker_policy"}
WHOSE = (
    ("tenant", "One tenant"),
    ("tier", "Each tenant of a tier"),
    ("dependency", "All calls to a dependency together"),
)
_DAY_S = 86_400
#: Period -> the longest time that it lasts.
_WINDOW_S = {"hour": 3_600, "day": _DAY_S, "week": 7 * _DAY_S, "month": 31 * _DAY_S}
PERIODS = (("day", "Day"), ("week", "Week"), ("month", "Month"), ("hour", "Hour"))


class BudgetForm(EditForm):
    whose = TextField(16)
    tenant = TextField(200)
    tier = TextField(64)
    dependency = TextField(64)
    name = TextField(64)
    limit = WholeNumberField(*bounds_of("limit"))
    measure = TextField(64, initial="calls")
    period = TextField(8)
    time_zone = TextField(64, initial="UTC")
    shadow = TextField(3, initial="no")

    def save(self) -> str:
        typed, environment = self.cleaned_data, environment_in(self.request)
        whose = typed["whose"]
        self._check(environment)
        check(self.request.user, _RIGHTS[whose], environment, service="")
        columns: dict[str, Any] = {
            "limit": typed["limit"],
            "algorithm": Algorithm.FIXED_WINDOW,
            "window_s": _WINDOW_S[typed["period"]],
            "period": typed["period"],
            "time_zone": typed["time_zone"] or "UTC",
            "measure": typed["measure"] or "calls",
            "shadow": typed["shadow"] == "yes",
            "failure_policy": VENDOR_DEFAULTS["failure_policy"] if whose == "dependency" else BUDGET_POLICY,
            "expected_version": None,
        }
        columns |= self.common
        name = self._name
        if whose == "dependency":
            revision = edits.set_vendor_limit(dependency=typed["dependency"], name=name, **columns)
        elif whose == "tier":
            columns["dependency"] = typed["dependency"]
            revision = edits.set_tier_quota(tier=typed["tier"], quota=name, **columns)
        else:
            columns["dependency"] = typed["dependency"]
            revision = edits.set_tenant_quota(tenant=typed["tenant"], quota=name, **columns)
        # Budgets of a tier are listed only for tenants that are busy.
        self.then = saved_at(reverse("tiers" if whose == "tier" else "budgets"), revision)
        return ""

    @property
    def _name(self) -> str:
        """The typed name, or such as ``calls-per-day``."""
        measure = self.cleaned_data["measure"] or "calls"
        return self.cleaned_data["name"] or f"{measure.replace('_', '-')}-per-{self.cleaned_data['period']}"

    def _check(self, environment: str) -> None:
        """Raise ``InvalidEdit`` for what is not chosen, and for a name that is in use."""
        typed, problems = self.cleaned_data, dict[str, list[str]]()
        if typed["whose"] not in _RIGHTS:
            raise InvalidEdit({"whose": ["Choose whose budget it is."]})
        if typed["period"] not in _WINDOW_S:
            problems["period"] = ["Choose a period."]
        whose, owner = typed["whose"], typed[typed["whose"]]
        if not owner:
            problems[whose] = [f"Enter the id of the {whose}." if whose == "tenant" else f"Choose a {whose}."]
        elif not _exists(environment, whose, owner):
            problems[whose] = [f"There is no {whose} {owner}."]
        elif "period" not in problems and _is_used(environment, whose, owner, self._name):
            text = f"{owner} already has a limit {self._name}. Enter another name, or edit that limit."
            problems["name"] = [text]
        if problems:
            raise InvalidEdit(problems)

    def refuse(self, error: EditError) -> int:
        if isinstance(error, InvalidEdit):
            fields = {"quota": "name", "vendor_limit": "name"}
            columns = ((where.rpartition(".")[2], texts) for where, texts in error.errors.items())
            error = InvalidEdit({fields.get(column, column): list(texts) for column, texts in columns})
        return super().refuse(error)


def _exists(environment: str, whose: str, owner: str) -> bool:
    if whose == "tenant":
        return Tenant.objects.filter(environment=environment, key=owner, deleted=False).exists()
    return names_of(Tier if whose == "tier" else Dependency, environment).filter(name=owner).exists()


def _is_used(environment: str, whose: str, owner: str, name: str) -> bool:
    """Whether the owner has a limit of this name, or inherits one that the budget would replace."""
    if whose == "dependency":
        vendors = VendorLimit.objects.filter(dependency__environment=environment, dependency__name=owner)
        return vendors.filter(name=name).exists()
    of_tiers = TierQuota.objects.filter(tier__environment=environment, name=name)
    if whose == "tier":
        return of_tiers.filter(tier__name=owner).exists()
    own = TenantQuota.objects.filter(tenant__environment=environment, tenant__key=owner, name=name)
    return own.exists() or of_tiers.filter(tier__tenants__key=owner, tier__tenants__deleted=False).exists()


@require_http_methods(["GET", "POST"])
@require("edit_quota")
def add_budget(request: HttpRequest) -> HttpResponse:
    """Show the form, for the owner that the address names, or save what was typed."""
    if request.method != "POST":
        return _page(request)
    return run_edit(BudgetForm(request), page=_page, then="budgets")


def _page(
    request: HttpRequest,
    *,
    typed: Mapping[str, str] | None = None,
    errors: Errors | None = None,
    status: int = 200,
    **extra: Any,
) -> HttpResponse:
    environment = environment_in(request)
    named = {whose: text_parameter(request, whose) for whose in _RIGHTS if request.GET.get(whose)}
    start = {"whose": next(iter(named), "tenant"), "period": "day", "measure": "calls", "time_zone": "UTC"}
    return show(
        request,
        "budgets",
        "budget_form.html",
        status=status,
        typed=start | named if typed is None else typed,
        errors=errors or {},
        whose=WHOSE,
        periods=PERIODS,
        shadow=(("no", "Refuse"), ("yes", "Only count (shadow)")),
        tiers=choices_of(Tier, environment, "Choose a tier"),
        dependencies=list(names_of(Dependency, environment)),
        **extra,
    )
