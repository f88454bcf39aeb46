"""Examples of the documents about refusals."""

from typing import Any

from fuseboard.contract.words import DEFAULT_ENVIRONMENT

_THEN = {"kind": "tier", "name": "free", "tier": "free", "suspended": False}

_RULE = {"name": "requests", "kind": "quota", "dependency": ""}
_CHANGE = {
    "revision": 4213,
    "at": "2026-11-23T09:41:00Z",
    "by": "anna",
    "reason": "raised for launch",
    "kind": "tier",
    "name": "free",
    "fields": {"quotas.requests.limit": [600, 900]},
}
_SAMPLE = {
    "id": 4711,
    "at": "2026-11-23T09:32:03.412Z",
    "service": "shop",
    "pod": "shop-2",
    "dependency": "",
    "rule": "requests",
    "reason": "quota",
    "mode": "shared",
    "tenant": "acme",
    "endpoint": "POST /v1/orders",
    "revision": 4211,
    "retry_after_ms": 12400,
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "weight": 36.5,
}
_COUNTED = {"refused": 4310, "asked": 51200, "known_s": 3600}


def _line(value: str, percent: float, counted: dict[str, int] | None = None) -> dict[str, Any]:
    return {"value": value, "samples": 118, "percent": percent, "counted": counted}


REFUSAL_EXAMPLES: dict[str, dict[str, Any]] = {
    "ExplainIn": {"token": "fr1.USwAAQIDAaIHv4vUAQIDAAAAEHMAADBwAADgyLca9owwst0rAmDcVc7IU4Yh25e-QKrkGesw"},
    "ExplainedOut": {
        "environment": DEFAULT_ENVIRONMENT,
        "service": "shop",
        "at": "2026-11-23T09:32:03.412Z",
        "reason": "quota",
        "mode": "shared",
        "retry_after_ms": 12400,
        "rule": _RULE,
        "tenant": "acme",
        "tenant_state": "registered",
        "pod": "shop-2",
        "then": _THEN | {"revision": 4211, "limit": "600 calls per min"},
        "now": _THEN | {"revision": 4213, "limit": "900 calls per min"},
        "known_revision": True,
        "changes": [_CHANGE],
        "transition": None,
        "headline": 'Refused by quota "requests" of tier free: the quota was spent.',
        "sentences": ["Tenant acme, in tier free then.", "Then: 600 calls per min (revision 4211)."],
    },
    "RefusalRuleOut": _RULE,
    "ThenOrNowOut": _THEN | {"revision": 4211, "limit": "600 calls per min"},
    "ChangeSinceOut": _CHANGE,
    "TransitionThenOut": {
        "at": "2026-11-23T09:31:50Z",
        "from_state": "closed",
        "to_state": "open",
        "cause": "ratio",
        "actor": "",
    },
    "RefusalOut": _SAMPLE,
    "RefusalPage": {"items": [_SAMPLE], "next": 4711},
    "CountedRefusalsOut": _COUNTED,
    "RefusalLineOut": _line("requests", 90.5, _COUNTED | {"refused": 3902}),
    "RefusalCountsOut": {
        "counted": _COUNTED,
        "samples": 120,
        "tenant": [_line("acme", 90.5, _COUNTED | {"refused": 3902})],
        "rule": [_line("requests", 90.5, _COUNTED | {"refused": 3902})],
        "endpoint": [_line("POST /v1/orders", 71.0)],
        "pod": [_line("shop-2", 34.5, _COUNTED | {"refused": 1480})],
        "reason": [_line("quota", 95.0)],
        "dependency": [_line("", 100.0)],
    },
}
