"""The part that each pod allows alone, for the pages."""

from dataclasses import dataclass

import msgspec

from controlplane.fleet.models import Server
from controlplane.policies.document import environment_of, policy_of
from controlplane.shares.cells import Cell
from controlplane.shares.models import Piece
from fuseboard.contract.policy import Limit
from fuseboard.contract.shares import HeldShare, allowed_alone, settled


@dataclass(frozen=True, kw_only=True)
class RuleAlone:
    #: ``tier pro``, ``payments-api``, ``callers without a tenant``.
    owner: str
    name: str
    limit: int
    window_ms: int
    failure_policy: str
    words: str


def piece_of(server: Server) -> HeldShare | None:
    """The reserved share that this process received last, if Postgres knows one."""
    row = Piece.objects.filter(environment=server.environment, server=server.name, boot=server.boot).first()
    if row is None:
        return None
    cell = Cell(row.level, row.place).shrunk(row.offered)
    return HeldShare(level=cell.level, place=cell.place, terms=row.terms)


def reported_piece(server: Server) -> HeldShare | None:
    """The reserved share that the pod says it has; ``None`` for none, or if an older gateway hears it."""
    try:
        return msgspec.convert(server.share, HeldShare) if server.share else None
    except msgspec.ValidationError:
        return None


def rules_alone(server: Server, *, servers: int, share: HeldShare | None) -> list[RuleAlone]:
    """Each rule of the environment, as this pod decides it while Redis is unavailable."""
    policy = settled(policy_of(environment_of(server.environment)))

    def alone(owner: str, limit: Limit) -> RuleAlone:
        return RuleAlone(
            owner=f"{owner}, {limit.dependency}" if limit.dependency else owner,
            name=limit.name,
            limit=limit.limit,
            window_ms=limit.window_ms,
            failure_policy=limit.failure_policy.value,
            words=allowed_alone(limit, servers=servers, share=share).words,
        )

    return [
        *(alone(d.name, limit) for d in policy.dependencies for limit in d.vendor_limits),
        *(alone(f"tier {tier.name}", limit) for tier in policy.tiers for limit in tier.quotas),
        *(alone("callers without a tenant", limit) for limit in policy.subject_limits),
        *(alone("all callers", limit) for limit in policy.service_limits),
    ]
