"""The fields of a tier, a tenant, a dependency and the environment that their editors show besides limits."""

from dataclasses import dataclass
from typing import Any

from controlplane.phrases import range_words
from controlplane.policies.fields import Fields
from controlplane.policies.limits import SUBJECT_DEFAULTS, VENDOR_DEFAULTS
from controlplane.policies.models import MAX_MS, Kind
from controlplane.policies.protection import PROTECTION
from controlplane.policies.protection_presets import PRESETS, SIZE, size_words
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
#: The timeout that the form of a new dependency starts with.
NEW_TIMEOUT_MS = 10_000
#: In the place of a size: nothing protects pods from the dependency.
NO_PROTECTION = "off"


@dataclass(frozen=True, kw_only=True)
class OwnField:
    """A field of the thing itself. ``choices`` is the name of a list that the page passes."""

    name: str
    label: str
    hint: str = ""
    choices: str = ""
    longest: int = 0
    flag: bool = False
    #: Only in the form of a new thing.
    new_only: bool = False
    default: Any = ""


_TITLE = OwnField(name="title", label="Title", longest=200)
_WAIT = OwnField(
    name="wait_ms",
    label=CALLS["wait_ms"],
    hint=f"0 to {MAX_WAIT_MS:,}",
    default=0,
)
_TUNING_LABELS = {"ipv6_prefix": "IPv6 prefix, bits"}
_TUNING_HINTS = {
    "ipv6_prefix": f"{WIDEST_PREFIX} to {NARROWEST_PREFIX}: addresses with one prefix are one caller"
}
OWN: dict[str, tuple[OwnField, ...]] = {
    "tier": (
        _TITLE,
        OwnField(
            name="priority",
            label="Priority",
            hint="0 to 100; an overloaded pod sheds the lowest first",
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
        OwnField(name="kind", label="Kind", choices="kinds", new_only=True),
        _TITLE,
        OwnField(
            name="owner",
            label="Owner",
            hint="a service: people with a role for it may edit this dependency",
            longest=200,
        ),
        OwnField(name="runbook", label="Runbook", choices="runbooks", default=None),
        OwnField(
            name="fallback_note",
            label=CALLS["fallback_note"],
            longest=500,
            hint="at most 500 characters",
            new_only=True,
        ),
        OwnField(
            name="timeout_ms",
            label=CALLS["timeout_ms"],
            hint=range_words(1, MAX_MS),
            default=NEW_TIMEOUT_MS,
            new_only=True,
        ),
        OwnField(
            name=PROTECTION,
            label="Protection of pods",
            choices="sizes",
            default=SIZE,
            hint="with the SLA and the retries of its kind",
            new_only=True,
        ),
    ),
    "environment": (
        OwnField(name="default_tier", label="Tier of unregistered tenants", choices="tiers"),
        *(
            OwnField(
                name=f"tuning.{name}",
                label=_TUNING_LABELS.get(name)
                or name.replace("_us", ", us").replace("_ms", ", ms").replace("_", " ").capitalize(),
                hint=_TUNING_HINTS.get(name, ""),
                default=getattr(Tuning(), name),
            )
            for name in Tuning.__struct_fields__
        ),
    ),
}


def choices_of_sizes() -> list[tuple[str, str]]:
    """The sizes of bulkheads for a new dependency. The queue of a shorter timeout waits for half of it."""
    sizes = [(size, size_words(size, timeout_ms=NEW_TIMEOUT_MS)) for size in PRESETS["bulkhead"]]
    return [*sizes, (NO_PROTECTION, "none: no bulkhead, no retries")]


def choices_of_kinds() -> list[tuple[str, str]]:
    return [(str(value), str(label)) for value, label in Kind.choices]
