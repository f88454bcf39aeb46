"""The common steps of an edit of one row: find it, check its version, write it, record it.

Rows are read inside ``revise``. Its lock on the environment admits one edit at a time, so a row does
not change between reading and writing.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from controlplane.editing.revise import Revision
from controlplane.errors import NotFound
from controlplane.policies.conflicts import check_version
from controlplane.policies.fields import Fields, dependency_fields, tenant_fields, tier_fields
from controlplane.policies.models import Dependency, Tenant, Tier

Row = TypeVar("Row", Tenant, Tier, Dependency)


class _Edit(ABC, Generic[Row]):
    kind: ClassVar[str]

    def __init__(self, revision: Revision, name: str, expected_version: int | None) -> None:
        self.revision = revision
        self.name = name
        self.row: Row = self.find()
        self.before = self.fields()
        check_version(
            environment=revision.environment,
            target_kind=self.kind,
            target_name=name,
            expected=expected_version,
            now=self.before,
        )

    @abstractmethod
    def find(self) -> Row:
        """Return the row with this name. Raises ``NotFound``."""

    @abstractmethod
    def fields(self) -> Fields:
        """Return the fields that are compared, stored and recorded."""

    def finish(self, action: str) -> None:
        """Write the row with its next version, and the audit entry."""
        self.row.version += 1
        self.row.save()
        after = self.fields()
        self.revision.audit(
            action, target_kind=self.kind, target_name=self.name, before=self.before, after=after
        )
        gone = getattr(self.row, "deleted", False)
        self.revision.change(self.kind, self.name, before=self.before, after=None if gone else after)


class TenantEdit(_Edit[Tenant]):
    kind = "tenant"

    def find(self) -> Tenant:
        rows = Tenant.objects.select_related("tier").filter(deleted=False)
        try:
            return rows.get(environment_id=self.revision.environment, key=self.name)
        except Tenant.DoesNotExist:
            raise NotFound("tenant", self.name) from None

    def fields(self) -> Fields:
        return tenant_fields(self.row)

    def finish(self, action: str) -> None:
        self.row.changed_revision = self.revision.number
        super().finish(action)


class TierEdit(_Edit[Tier]):
    kind = "tier"

    def find(self) -> Tier:
        return find_tier(self.revision.environment, self.name)

    def fields(self) -> Fields:
        return tier_fields(self.row)


class DependencyEdit(_Edit[Dependency]):
    kind = "dependency"

    def find(self) -> Dependency:
        try:
            return Dependency.objects.get(environment_id=self.revision.environment, name=self.name)
        except Dependency.DoesNotExist:
            raise NotFound("dependency", self.name) from None

    def fields(self) -> Fields:
        return dependency_fields(self.row)


def find_tier(environment: str, name: str) -> Tier:
    try:
        return Tier.objects.get(environment_id=environment, name=name)
    except Tier.DoesNotExist:
        raise NotFound("tier", name) from None
