"""A request to an editor: the tier, tenant, dependency or environment, the revision, and typed values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

from controlplane.accounts.permissions import environment_in, may, require, require_role
from controlplane.editing.edits.edit_entity import EntityEdit
from controlplane.editing.edits.shown import entity_as_of, quotas_to_inherit
from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.models import Dependency
from dashboard.forms import sent_number
from dashboard.reader import check_owner
from dashboard.views.editor.form_input import Typed, typed_in
from dashboard.views.page import bounded_text, text_parameter

#: Prefix of an input before the name of a unit.
_CHOICE = "choice."


@dataclass(frozen=True)
class Kind:
    #: Its section in a plan; empty for the environment.
    section: str
    #: The right that its editor needs.
    permission: str
    removable: bool = True


#: Kinds of things that have an editor, by the word that addresses, plans and pages use.
KINDS = {
    "tier": Kind("tiers", "edit_quota"),
    "tenant": Kind("tenants", "edit_tenant"),
    "dependency": Kind("dependencies", "edit_breaker_policy"),
    "environment": Kind("", "edit_quota", removable=False),
}


@dataclass(frozen=True, kw_only=True)
class EditRequest:
    environment: str
    kind: str
    name: str
    #: Whether the thing is added.
    new: bool
    #: The revision that the page shows.
    base: int
    #: The thing as of that revision; ``None`` if it did not exist.
    shown: Fields | None
    #: The quotas of its tier that a tenant has no own values for.
    of_tier: Mapping[str, Fields]
    #: The texts in the inputs: sent, or filled in by a link.
    inputs: Mapping[str, str]
    #: The typed values that differ from those that the page shows.
    typed: Typed
    #: Units whose values of another person this edit replaces, and the revision at which this was chosen.
    replace: tuple[str, ...]
    seen: int
    #: Whether the values of another person were taken for some units.
    took_theirs: bool
    #: ``suspend`` or ``resume`` if a link asks for it: then the form has only that. Empty for the editor.
    only: str = ""

    @property
    def edit(self) -> EntityEdit:
        return EntityEdit(
            environment=self.environment,
            kind=self.kind,
            name=self.name,
            typed=self.typed.fields,
            removed=tuple(self.typed.removed),
            base=None if self.new else self.base,
        )


#: The value that a link gives ``own.suspended`` -> the act.
_ONLY = {"yes": "suspend", "no": "resume"}
_View = Callable[[HttpRequest, str], HttpResponseBase]


def for_editors(view: _View) -> _View:
    """Refuse a kind that has no editor, and users without the right that the editor of the kind needs."""

    @wraps(view)
    def checked(request: HttpRequest, kind: str) -> HttpResponseBase:
        if kind not in KINDS:
            raise Http404
        if kind == "dependency":
            return require_role("viewer")(_for_owners(view))(request, kind)
        return require(KINDS[kind].permission)(view)(request, kind)

    return checked


def _for_owners(view: _View) -> _View:
    """A role for its service is enough to edit a dependency, and not to add, remove or schedule it."""

    def owned(request: HttpRequest, kind: str) -> HttpResponseBase:
        environment = environment_in(request)
        whole = "new" in request.GET or request.POST.get("act") == "remove" or request.POST.get("starts")
        rows = Dependency.objects.filter(
            environment_id=environment, name=_name_in(request, kind, environment)
        )
        owner = None if whole else rows.values_list("owner", flat=True).first()
        check_owner(request, KINDS[kind].permission, owner or "")
        return view(request, kind)

    return owned


def decides(request: HttpRequest, kind: str) -> bool:
    """Whether the reader may edit every thing of the kind, and not only what one service owns."""
    return may(request.user, KINDS[kind].permission, environment_in(request))


def read_request(request: HttpRequest, kind: str) -> EditRequest:
    """Read what was sent. A request that only opens the page shows the newest revision."""
    sent, new = request.method == "POST", "new" in request.GET
    environment = environment_in(request)
    name = _name_in(request, kind, environment)
    # A form without the revision that its page showed is compared with everything.
    base = sent_number(request.POST.get("base", ""), 0)
    if new or not sent:
        base = environment_of(environment).revision
    shown = None if new else entity_as_of(environment, base, kind, name)
    of_tier = _of_tier(environment, kind, shown, base)
    inputs = request.POST if sent else request.GET
    typed = typed_in(kind, inputs, shown, of_tier)
    taken = _units(request, "drop")
    typed.drop(taken)
    if sent and new and not name:
        typed.errors["name"] = ["Enter a name."]
    if sent and new and kind == "tenant" and not typed.fields.get("tier"):
        typed.errors["own.tier"] = ["Choose a tier."]
    return EditRequest(
        environment=environment,
        kind=kind,
        name=name,
        new=new,
        base=base,
        shown=shown,
        of_tier=of_tier,
        inputs=inputs,
        typed=typed,
        replace=tuple(_units(request, "replace")),
        seen=sent_number(request.POST.get("seen", ""), 0),
        took_theirs=bool(taken),
        only="" if kind != "tenant" or new else _ONLY.get(request.GET.get("own.suspended", ""), ""),
    )


def _units(request: HttpRequest, choice: str) -> list[str]:
    """The units whose values another person changed too, for which this was chosen."""
    chosen = [name.removeprefix(_CHOICE) for name in request.POST if name.startswith(_CHOICE)]
    return [
        *request.POST.getlist(choice),
        *(unit for unit in chosen if request.POST[f"{_CHOICE}{unit}"] == choice),
    ]


def _name_in(request: HttpRequest, kind: str, environment: str) -> str:
    if kind == "environment":
        return environment
    if "new" in request.GET:
        return bounded_text(request.POST if request.method == "POST" else request.GET, "name").strip()
    return text_parameter(request, "key")


def _of_tier(environment: str, kind: str, shown: Fields | None, base: int) -> dict[str, Fields]:
    if kind != "tenant" or shown is None:
        return {}
    own = limits_in("quotas", shown)
    of_tier = quotas_to_inherit(entity_as_of(environment, base, "tier", shown["tier"]))
    return {name: columns for name, columns in of_tier.items() if name not in own}
