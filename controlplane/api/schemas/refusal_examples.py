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
}
