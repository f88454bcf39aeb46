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
#: "Store" is Redis to a reader: the pods' own words for it are in the contract.
_TUNING_LABELS = {
    "store_deadline_us": "Deadline of Redis, \u00b5s",
    "store_failures": "Failures of Redis",
    "store_timeouts": "Missed deadlines",
    "ramp_ms": "Ramp up after Redis returns, ms",
    "reserved_percent": "Reserved share, percent",
    "ipv6_prefix": "IPv6 prefix, bits",
    "remaining_for_ms": "Vendors' figures, ms",
    "vendor_floor_percent": "Follow vendors down to, percent",
}
_TUNING_HINTS = {
    "store_deadline_us": "a decision waits this long for Redis; 1,000 \u00b5s are 1 ms",
    "store_failures": "this many in the failure window: the pod decides alone",
    "failure_window_ms": "failures of Redis count this long",
    "store_timeouts": "this many in the timeout window: the pod decides alone",
    "timeout_window_ms": "missed deadlines count this long",
    "probe_interval_ms": "a pod that decides alone asks Redis again this often",
    "ramp_ms": "the part of each limit that Redis decides grows from 10 to 100 %",
    "report_interval_ms": "pods report the results of calls at least this often",
    "reserved_percent": "the part of reserved limits that pods spend without Redis",
    "share_lease_ms": "a pod may spend its reserved share this long after a heartbeat",
    "share_rest_ms": "a reserved share rests this long before another pod gets it",
    "journal_keys": "the most limits that one pod counts without Redis",
    "journal_bytes": "the largest file of a pod's calls without Redis",
    "vendor_floor_percent": "vendors' limits follow their refusals, never below this part; 0 for never",
    "remaining_for_ms": "what a vendor has left is believed this long after its call; 0 for never",
    "ipv6_prefix": f"{WIDEST_PREFIX} to {NARROWEST_PREFIX}: addresses with one prefix are one caller",
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
                or name.replace("_us", ", \u00b5s").replace("_ms", ", ms").replace("_", " ").capitalize(),
                hint=_TUNING_HINTS.get(name) or range_words(*_bounds(name)),
                bounds=_bounds(name),
                default=getattr(Tuning(), name),
            )
            for name in Tuning.__struct_fields__
        ),
    ),
}
