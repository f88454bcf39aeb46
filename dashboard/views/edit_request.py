"""What a request to the editor of one thing says: which thing, which revision it showed, what was typed."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.http import HttpRequest

from controlplane.accounts.permissions import environment_in
from controlplane.editing.edits.edit_thing import ThingEdit, thing_as_of
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.limits import ALONE
from dashboard.typed_thing import Typed, typed_in
from dashboard.views.page import bounded_text, text_parameter


@dataclass(frozen=True)
class Kind:
    #: Its section in a plan; empty for the environment.
    section: str
    word: str
    permission: str
    #: What only a person with this right may do.
    removable: bool = True


KINDS = {
    "tier": Kind("tiers", "tier", "edit_quota"),
    "tenant": Kind("tenants", "tenant", "edit_tenant"),
    "dependency": Kind("dependencies", "dependency", "edit_breaker_policy"),
    "environment": Kind("", "environment", "edit_quota", removable=False),
}


def name_in(request: HttpRequest, kind: str) -> str:
    if kind == "environment":
        return environment_in(request)
    if "new" in request.GET:
        return bounded_text(request.POST, "name").strip()
    return text_parameter(request, "key")


def base_in(data: Mapping[str, str]) -> int:
    """The revision that the page showed. A form without it is compared with everything."""
    return number_in(data.get("base", ""))


def number_in(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def typed_of(request: HttpRequest, kind: str, name: str, *, new: bool) -> Typed:
    environment, base = environment_in(request), base_in(request.POST)
    shown = None if new else thing_as_of(environment, base, kind, name)
    typed = typed_in(kind, request.POST, shown, inherited(environment, kind, shown, base))
    # Where another person's value is taken, what was typed for this unit is left out.
    typed.drop(request.POST.getlist("drop"))
    if new and not name:
        typed.errors["name"] = ["Enter a name."]
    return typed


def edit_of(request: HttpRequest, kind: str, name: str, typed: Typed, *, new: bool) -> ThingEdit:
    return ThingEdit(
        environment=environment_in(request),
        kind=kind,
        name=name,
        typed=typed.fields,
        removed=tuple(typed.removed),
        base=None if new else base_in(request.POST),
    )


def inherited(environment: str, kind: str, shown: Fields | None, base: int) -> dict[str, Fields]:
    """Return the quotas of a tenant that come from its tier, as of the revision that the page showed."""
    if kind != "tenant" or shown is None:
        return {}
    tier = thing_as_of(environment, base, "tier", shown["tier"]) or {}
    own = limits_in("quotas", shown)
    return {
        name: {column: value for column, value in columns.items() if column not in ALONE}
        for name, columns in limits_in("quotas", tier).items()
        if name not in own
    }
