"""Examples of the documents about refusals."""

from typing import Any

_THEN = {"kind": "tier", "name": "free", "tier": "free", "suspended": False}

REFUSAL_EXAMPLES: dict[str, dict[str, Any]] = {
    "ExplainIn": {"token": "fr1.USwAAQIDAaIHv4vUAQIDAAAAEHMAADBwAADgyLca9owwst0rAmDcVc7IU4Yh25e-QKrkGesw"},
    "ExplainedOut": {
        "environment": "production",
        "service": "shop",
        "at": "2026-11-23T09:32:03.412Z",
        "reason": "quota",
        "mode": "shared",
        "retry_after_ms": 12400,
        "rule": {"name": "requests", "kind": "quota", "dependency": ""},
        "tenant": "acme",
        "tenant_state": "registered",
        "pod": "shop-2",
        "then": _THEN | {"revision": 4211, "limit": "600 calls per min"},
        "now": _THEN | {"revision": 4213, "limit": "900 calls per min"},
        "known_revision": True,
        "changes": [
            {
                "revision": 4213,
                "at": "2026-11-23T09:41:00Z",
                "by": "anna",
                "reason": "raised for launch",
                "kind": "tier",
                "name": "free",
                "fields": {"quotas.requests.limit": [600, 900]},
            }
        ],
        "transition": None,
        "headline": 'Refused by quota "requests" of tier free: the quota was spent.',
        "sentences": ["Tenant acme, in tier free then.", "Then: 600 calls per min (revision 4211)."],
    },
}
