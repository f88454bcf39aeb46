"""Heartbeats with one more word about the agent: what it can, whom it serves, what a sidecar counts."""

from msgspec.structs import replace

from fuseboard.contract.sync import SyncRequest
from tests.contract.sample_examples import DESCRIPTORS, PERMITS


def with_flags(request: SyncRequest) -> dict[str, SyncRequest]:
    flags = ("carries_counts", "enforces_budgets", "serves_node")
    sidecar = replace(request, descriptors=DESCRIPTORS, permits=PERMITS)
    found = {f"sync_request.{flag}.json": replace(request, **{flag: True}) for flag in flags}
    return found | {"sync_request.descriptors.json": sidecar}
