"""Agents without a control plane and without Redis: a bootstrap file has their policy."""

import json
from pathlib import Path

import msgspec

from fuseboard.contract.policy import Policy
from fuseboard.settings import AgentSettings

#: Refuses connections.
NOWHERE = "redis://127.0.0.1:1/0"


def settings_with(folder: Path, policy: Policy) -> AgentSettings:
    """Settings with ``policy``. Each pod spends its share of every limit."""
    path = folder / "bootstrap.json"
    strict = json.loads(msgspec.json.encode(policy))
    for owner in (*strict["tiers"], *strict["dependencies"]):
        for limit in (*owner.get("quotas", ()), *owner.get("vendor_limits", ())):
            limit["failure_policy"] = "local_share"
    path.write_text(json.dumps({"policy": strict}))
    return AgentSettings(
        redis_url=NOWHERE, server="shop-1", service="shop", state_dir=folder, bootstrap_file=path
    )
