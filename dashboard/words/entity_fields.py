"""The fields of a tier, a tenant, a dependency and the environment that their editors show besides limits."""

from dataclasses import dataclass
from typing import Any, get_type_hints

from controlplane.phrases import range_words
from controlplane.policies.fields import Fields
from controlplane.policies.limits import SUBJECT_DEFAULTS, VENDOR_DEFAULTS
from controlplane.policies.setting_labels import CALLS
from fuseboard.contract.addresses import NARROWEST_PREFIX, WIDEST_PREFIX
from fuseboard.contract.policy import MAX_WAIT_MS, Tuning

#: Kind -> what pages call its limits.
LIMIT_WORD = {
    "tier": "quota",
    "tenant": "quota",
    "dependency": "vendor limit",
    "environment": "limit of callers",
}
#: Kind -> the columns that the form of a new limit starts with.
NEW: dict[str, Fields] = {
    "tier": {},
    "tenant": {},
    "dependency": VENDOR_DEFAULTS,
    "environment": SUBJECT_DEFAULTS,
}


@dataclass(frozen=True, kw_only=True)
class OwnField:
    """A field of the thing itself. ``choices`` is the name of a list that the page passes."""

    name: str
    label: str
    hint: str = ""
    choices: str = ""
    longest: int = 0
    #: The least and the most of a number.
    bounds: tuple[int, int] | None = None
    flag: bool = False
    default: Any = ""


_TITLE = OwnField(name="title", label="Title", longest=200)
_WAIT = OwnField(
    name="wait_ms",
    label=CALLS["wait_ms"],
    hint=f"0 to {MAX_WAIT_MS:,}",
    bounds=(0, MAX_WAIT_MS),
    default=0,
)
_TUNING_LABELS = {"ipv6_prefix": "IPv6 prefix, bits"}
_TUNING_HINTS = {
    "ipv6_prefix": f"{WIDEST_PREFIX} to {NARROWEST_PREFIX}: addresses with one prefix are one caller"
}
_TUNING_TYPES = get_type_hints(Tuning, include_extras=True)


def _bounds(name: str) -> tuple[int, int]:
    """The bounds that the contract gives a number of the tuning."""
    (found,) = _TUNING_TYPES[name].__metadata__
    return found.ge, found.le


OWN: dict[str, tuple[OwnField, ...]] = {
    "tier": (
        _TITLE,
        OwnField(
            name="priority",
            label="Priority",
            hint="0 to 100; an overloaded pod sheds the lowest first",
            bounds=(0, 100),
            default=50,
        ),
        _WAIT,
    ),
    "tenant": (
        OwnField(name="tier", label="Tier", choices="tiers"),
        _TITLE,
        OwnField(name="parent", label="Parent tenant", hint="empty: none", longest=200),
        OwnField(name="suspended", label="Suspended: every request is refused", flag=True, default=False),
    ),
    "dependency": (
        _TITLE,
        OwnField(
            name="owner",
            label="Owner",
            hint="a service: people with a role for it may edit this dependency",
            longest=200,
        ),
        OwnField(name="runbook", label="Runbook", choices="runbooks", default=None),
    ),
    "environment": (
        OwnField(name="default_tier", label="Tier of unregistered tenants", choices="tiers"),
        *(
            OwnField(
                name=f"tuning.{name}",
                label=_TUNING_LABELS.get(name)
                or name.replace("_us", ", us").replace("_ms", ", ms").replace("_", " ").capitalize(),
                hint=_TUNING_HINTS.get(name) or range_words(*_bounds(name)),
                bounds=_bounds(name),
                default=getattr(Tuning(), name),
            )
            for name in Tuning.__struct_fields__
        ),
    ),
}
