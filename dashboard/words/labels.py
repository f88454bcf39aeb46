"""The words of the pages for what is stored as keys: actions, causes, states and kinds."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from controlplane.fleet.mode_words import mode_change_words
from controlplane.phrases import amount_words, window_words
from controlplane.policies.limit_fields import WORDS
from controlplane.status.incidents import CAUSES
from dashboard.words.setting_lines import lower_first, setting_words, value_text
from dashboard.words.store_errors import store_error_words
from fuseboard.contract.words import Algorithm

#: Key of the counts of a plan -> what the plan did: ``tenant.changed``.
_COUNT = re.compile(r"(\w+)\.(created|changed|removed)")
#: Details of events that a trigger of the database stores.
_OWN_BREAKER = re.compile(r"(\S+): (\w+) -> (\w+)")
_MODE = re.compile(r"(\w+ -> \w+)(?:: (.*))?", re.DOTALL)
_STATES = {"half_open": "half-open"}
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d.\d\d:\d\d")
#: Cause of a transition, as it is stored.
_CAUSES = CAUSES | {
    "elapsed": "open time is over, probing",
    "probing": "open time is over, probing",
    "recovered": "probes succeeded",
    "forced": "override",
    "forced_open": "override: forced open",
    "forced_closed": "override: forced closed",
    "metrics_only": "override: metrics only",
    "disabled": "override: disabled",
    "extended": "an operator extended the override",
    "reset": "reset by an operator",
    "own_breaker": "own breaker",
    "expired": "the override expired",
    "override_over": "the override is over",
    "override_ended": "an operator ended the override",
}
_DRILLS = {"gone": "Redis unreachable", "slow": "Redis slow"}
#: First parts of a field name that add nothing for a reader.
_GROUPS = {"override", "quotas", "vendor_limits", "breaker", "protection"}
#: Start of the fields of the prices of a model.
_PRICES = "prices."
#: Fields of a budget that count its measure.
_AMOUNTS = frozenset(("amount", "raised_to"))
#: Fields of change requests and approval rules -> what they count.
_COUNTED = {"things": "item", "needed": "approval"}
#: Stored state of a change request or a scheduled change -> its words.
_REQUEST_STATES = {"open": "waiting for approval", "waiting": "scheduled"}
#: Last parts of a field name that are units.
_UNITS = {"s": "s", "ms": "ms", "us": "\u00b5s", "percent": "%"}
#: Fields that mean nothing without the others.
_QUIET_FIELDS = {
    "version",
    "author",
    "base",
    "drill",
    "title",
    "body",
    "reason",
    "ticket",
    "revision",
    "epoch",
    "name",
    "environment",
    "id",
    "changed_revision",
    "reset_revision",
}


def difference(before: dict[str, Any] | None, after: dict[str, Any] | None) -> tuple[str, str]:
    """The old and the new values of a change, as short texts; empty when there are none."""
    old, new = _flat(before), _flat(after)
    shown = _shown(old, new)
    was, now = (", ".join(_texts(shown, values, _value_text)) for values in (old, new))
    # Values that differ by less than the texts show, such as seconds, are not a change to a reader.
    return ("" if was == now else was, now)


def _texts(fields: list[str], values: dict[str, Any], words: Callable[[str, Any], str]) -> list[str]:
    """The fields that have a value. The window of a limit stands beside its size: "limit 60 per s"."""
    texts = []
    for field in fields:
        name, _, column = field.rpartition(" ")
        size, window = (f"{name} {one}" for one in ("limit", "window_s"))
        is_rate = {size, window} <= set(fields) and bool(values.get(size)) and bool(values.get(window))
        if values.get(field) is None or (is_rate and column == "window_s"):
            continue
        if field == "period" and "amount" in fields:
            continue
        per = f" per {window_words(values[window])}" if is_rate and column == "limit" else ""
        if field == "amount" and values.get("period"):
            per = f" per {values['period']}"
        texts.append(f"{words(field, values[field])}{per}")
    return [text for text in texts if text]


def left_off(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[str]:
    """The changed fields that ``difference`` leaves out, each with its values.

    A limit that is new, or gone, is one change: its name and size say it.
    """
    old, new = _flat(before), _flat(after)
    shown = _shown(old, new)
    if not before or not after or any(_COUNT.fullmatch(field) for field in shown):
        return []
    whole = {field.rpartition(" ")[0] for field in old.keys() ^ new.keys() if field.endswith(" limit")}
    rest = [field for field in _changed(old, new) if field not in shown]
    return [
        f"{_name(field)}: {_plain(field, old.get(field))} to {_plain(field, new.get(field))}"
        for field in sorted(rest, key=_weight)
        if field.rpartition(" ")[0] not in whole
    ]


def _name(field: str) -> str:
    """``requests failure_policy`` to "requests without Redis"."""
    if field.startswith(_PRICES):
        return lower_first(setting_words(field))
    limit, _, column = field.rpartition(" ")
    if column in WORDS and WORDS[column].choices:
        return f"{limit} {lower_first(WORDS[column].label)}".strip()
    return _name_and_unit(field)[0]


def _plain(field: str, value: Any) -> str:
    if words := _choice(field, value):
        return words
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field.startswith(_PRICES) and value is not None:
        return value_text(field, value)
    if isinstance(value, int):
        return _amount(field, value)
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value in (None, "", {}) else str(value)


def _choice(field: str, value: Any) -> str:
    """``fail_closed`` to "refuse", as the forms call it; empty for a value that is not chosen from a list."""
    words = WORDS.get(field.rpartition(" ")[2])
    stored = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return lower_first(words.choices.get(stored, "")) if words else ""


def _changed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [
        field
        for field in (new.keys() | old.keys()) - _QUIET_FIELDS
        if old.get(field) != new.get(field)
        and (old.get(field) or new.get(field))
        # Only a token bucket has a burst. Other limits have the 1 of their column, which says nothing.
        and not (field.endswith("burst") and _is_window(field, old, new))
    ]


def _is_window(burst: str, *sides: dict[str, Any]) -> bool:
    """Whether the limit of this burst is a window on both sides."""
    column = f"{burst.removesuffix('burst')}algorithm"
    algorithms = {side[column] for side in sides if column in side}
    return bool(algorithms) and Algorithm.TOKEN_BUCKET not in algorithms


def _shown(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The fields that the text of a difference has."""
    fields = [
        field for field in _changed(old, new) if not isinstance(new.get(field) or old.get(field), dict | list)
    ]
    shown = sorted(fields, key=_weight)
    limits = [field for field in shown if field.endswith(" limit")]
    # The size, burst and window of a limit, and whether it refuses. The page of the quota has the rest.
    besides = [field for field in shown if field.endswith((" burst", " window_s", " shadow"))]
    counts = [field for field in shown if _COUNT.fullmatch(field)]
    return counts or ([*limits[:2], *besides[:3]] if limits else shown[:2])


def planned_words(fields: dict[str, Any]) -> list[str]:
    """Every value that a plan sets, also one that switches something off or empties it."""
    flat = _flat(fields)
    return _texts(sorted(flat, key=_weight), flat, _planned)


def _planned(field: str, value: Any) -> str:
    if value == "":
        return f"no {field.replace('_', ' ')}"
    if isinstance(value, list):
        return f"{field.replace('_', ' ')} {', '.join(map(str, value)) or 'none'}"
    return f"until {_moment(value)}" if field.endswith("expires_at") else _value_text(field, value)


def _moment(value: Any) -> str:
    """``2026-11-30T17:46:00+00:00`` to "30 Nov 2026 17:46 UTC"."""
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        # A text of a person that begins as a moment.
        return str(value)
    return f"{(at.astimezone(UTC) if at.tzinfo else at):%-d %b %Y %H:%M} UTC"


def _flat(fields: dict[str, Any] | None) -> dict[str, Any]:
    """``quotas.orders.limit`` to ``orders limit``: the target names the owner."""
    flat = {}
    for field, value in (fields or {}).items():
        group, _, rest = field.partition(".")
        # A quota may have dots in its name; its column has none.
        flat[" ".join(rest.rpartition(".")[::2]).strip() if rest and group in _GROUPS else field] = value
    # The amounts of a budget count its measure: people read them in its unit.
    for field in _AMOUNTS.intersection(flat) if "measure" in flat else ():
        if flat[field]:
            flat[field] = amount_words(flat[field], flat["measure"], exact=True)
    return flat


def _weight(field: str) -> tuple[int, str]:
    first = ("mode", "limit", "tier", "suspended", "burst", "window_s", "input", "output", "amount")
    last = field.rpartition("." if field.startswith(_PRICES) else " ")[2]
    return (first.index(last) if last in first else len(first), field)


def _value_text(field: str, value: Any) -> str:
    if field == "mode":
        return str(value).replace("_", " ")
    if value == "":
        return ""
    if field == "state":
        return _REQUEST_STATES.get(str(value), str(value).replace("_", " "))
    if field == "selector":
        return f"token {value}"
    if field == "at_100":
        return f"when it is spent: {value}"
    if field in _COUNTED:
        return f"{value:,} {_COUNTED[field]}{'' if value == 1 else 's'}"
    if field == "kind":
        return drill_words(str(value)) if str(value) in _DRILLS else f"kind {value}"
    if field.endswith("_until_us") and isinstance(value, int):
        # A part observes only until then.
        return f"{_name_and_unit(field)[0]} {_amount(field, value)}"
    if field == "expires_at":
        end = datetime.fromisoformat(str(value))
        return f"until {end:%-d %b %H:%M} UTC"
    if _MOMENT.match(str(value)):
        name = "" if field == "at" else f"{field.removesuffix('_at').replace('_', ' ')} "
        return f"{name}{_moment(value)}"
    if isinstance(value, bool):
        return field.replace("_", " ") if value else f"not {field.replace('_', ' ')}"
    if _COUNT.fullmatch(field):
        return count_words(field, value)
    if words := _choice(field, value):
        return f"{_name(field)}: {words}"
    if field.startswith(_PRICES):
        return f"{_name(field)} {value_text(field, value)}"
    if isinstance(value, int):
        return f"{_name_and_unit(field)[0]} {_amount(field, value)}"
    return f"{field.replace('_', ' ')} {value}"


def _name_and_unit(field: str) -> tuple[str, str]:
    """``retries_per_s`` to ("retries", "/s"), and ``window_s`` to ("window", " s")."""
    name, _, suffix = field.rpartition("_")
    if not name:
        unit = ""
    elif suffix == "s" and name.endswith("_per"):
        name, unit = name.removesuffix("_per"), "/s"
    elif field.endswith("_until_us"):
        # A part of the protection that decides and counts, but refuses nothing.
        name, unit = name.removesuffix("_until").replace("observe.", "").replace("observe ", ""), ""
        name = f"trial of {name}"
    elif suffix == "milli":
        # Thousandths of one per second.
        unit = "/s"
    else:
        unit = f" {_UNITS[suffix]}" if suffix in _UNITS else ""
        name = name if unit else field
    return (name or field).replace("_", " "), unit


def _amount(field: str, value: int) -> str:
    if field.endswith("_until_us"):
        return (
            f"until {datetime.fromtimestamp(value / 1_000_000, UTC):%-d %b %Y %H:%M} UTC" if value else "off"
        )
    number = f"{value / 1000:,g}" if field.endswith("_milli") else f"{value:,}"
    return f"{number}{_name_and_unit(field)[1]}"


def count_words(key: str, count: int) -> str:
    """``tenant.changed`` and 2 to "2 tenants changed"."""
    what, _, done = key.replace("_", " ").partition(".")
    plural = what if count == 1 else f"{what.removesuffix('y')}ies" if what.endswith("y") else f"{what}s"
    return f"{count:,} {plural} {done}"


def cause_words(cause: str) -> str:
    """The cause of a transition, for people."""
    return _CAUSES.get(cause, cause.replace("_", " "))


def state_verb(state: str, *, pods: int = 0) -> str:
    """The verb for a breaker that changes to a state; with ``pods``, for pods and their own breakers."""
    probing = "is probing" if not pods else "probes with" if pods == 1 else "probe with"
    return {"open": "opened", "half_open": probing}.get(state, state)


def policy_words(policy: str) -> str:
    """The effect of a failure policy: what a limit does without Redis."""
    return {
        "fail_open": "allows",
        "fail_closed": "refuses",
        "local_share": "local share",
        "reserved": "reserved share",
    }.get(policy, policy)


def event_words(kind: str) -> str:
    """An event of a pod in words."""
    return {
        "joined": "Joined",
        "left": "Left",
        "silent": "No heartbeat",
        "offline": "Offline",
        "back": "Heartbeat is back",
        "mode": "Mode changed",
        "config_rejected": "Configuration rejected",
        "config_accepted": "Configuration applied",
        "duplicate": "Duplicate name",
        "breaker": "Own breaker",
    }.get(kind, kind.replace("_", " "))


def config_source_words(source: str) -> str:
    """Where a pod got its configuration from."""
    return {
        "http": "from the control plane",
        "redis": "from Redis",
        "disk": "from the copy on its disk",
        "bootstrap": "from its bootstrap file",
        "built_in": "from the built-in defaults",
    }.get(source, f"from {source}")


def event_detail_words(detail: str) -> str:
    """The detail of an event of a pod; a trigger of the database stores it."""
    if moved := _OWN_BREAKER.fullmatch(detail):
        name, before, after = moved.groups()
        return f"{name}: {_STATES.get(before, before)} \u2192 {_STATES.get(after, after)}"
    if moved := _MODE.fullmatch(detail):
        change, cause = moved.groups()
        words = mode_change_words(change)
        return f"{words}: {store_error_words(cause)}" if cause else words
    return {"it said goodbye": "stopped cleanly"}.get(detail, detail)


def request_words(state: str) -> str:
    """The state of a change request."""
    return "Waiting for approval" if state == "open" else state.capitalize()


def drill_words(kind: str) -> str:
    """The outage that a drill simulates."""
    return _DRILLS.get(kind, kind)
