"""Heartbeats with one more word about the agent: what it can, and whom it serves."""

from msgspec.structs import replace

from fuseboard.contract.sync import SyncRequest


def with_flags(request: SyncRequest) -> dict[str, SyncRequest]:
    flags = ("carries_counts", "enforces_budgets", "serves_node")
    return {f"sync_request.{flag}.json": replace(request, **{flag: True}) for flag in flags}
