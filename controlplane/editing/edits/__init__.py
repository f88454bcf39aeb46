"""Every change of the configuration: one function, one transaction, one revision.

All arguments are named, and all functions return the new revision. If they raise one of
``controlplane.errors``, nothing has changed. The caller checks permissions before, see
``controlplane.accounts.permissions``.
"""

from controlplane.editing.edits.budgets import (
    raise_budget,
    remove_account,
    remove_budget,
    set_account,
    set_budget,
)
from controlplane.editing.edits.bulk import (
    TenantChange,
    TenantFilter,
    bulk_edit,
    preview_bulk_edit,
    scheduled_bulk_edit,
)
from controlplane.editing.edits.dependencies import (
    create_dependency,
    describe_dependency,
    set_breaker_policy,
    set_protection,
)
from controlplane.editing.edits.dependency_settings import set_dependency
from controlplane.editing.edits.descriptors import remove_descriptors, set_descriptors
from controlplane.editing.edits.edit_entity import (
    EntityEdit,
    check_scheduled,
    preview_edit,
    remove_entity,
    save_edit,
)
from controlplane.editing.edits.environments import (
    create_environment,
    create_tier,
    set_default_tier,
    set_tuning,
)
from controlplane.editing.edits.idle_slots import share_idle_slots
from controlplane.editing.edits.limit_templates import preview_template, remove_template, set_template
from controlplane.editing.edits.model_prices import remove_model, remove_price, set_model, set_price
from controlplane.editing.edits.pod_protection import set_pod_protection
from controlplane.editing.edits.quotas import (
    remove_subject_limit,
    remove_tenant_quota,
    remove_tier_quota,
    remove_vendor_limit,
    set_subject_limit,
    set_tenant_quota,
    set_tier_quota,
    set_vendor_limit,
)
from controlplane.editing.edits.revert import preview_revert, revert
from controlplane.editing.edits.rollback import rollback
from controlplane.editing.edits.runbooks import (
    keep_edited_runbook,
    remove_runbook,
    restore_runbook,
    save_runbook,
    use_shipped_runbook,
)
from controlplane.editing.edits.tenants import (
    change_tier,
    create_tenant,
    move_tenant,
    remove_tenant,
    resume_tenant,
    suspend_tenant,
)

__all__ = [
    "EntityEdit",
    "TenantChange",
    "TenantFilter",
    "bulk_edit",
    "change_tier",
    "check_scheduled",
    "create_dependency",
    "create_environment",
    "create_tenant",
    "create_tier",
    "describe_dependency",
    "keep_edited_runbook",
    "move_tenant",
    "preview_bulk_edit",
    "preview_edit",
    "preview_revert",
    "preview_template",
    "raise_budget",
    "remove_account",
    "remove_budget",
    "remove_descriptors",
    "remove_entity",
    "remove_model",
    "remove_price",
    "remove_runbook",
    "remove_subject_limit",
    "remove_template",
    "remove_tenant",
    "remove_tenant_quota",
    "remove_tier_quota",
    "remove_vendor_limit",
    "restore_runbook",
    "resume_tenant",
    "revert",
    "rollback",
    "save_edit",
    "save_runbook",
    "scheduled_bulk_edit",
    "set_account",
    "set_breaker_policy",
    "set_budget",
    "set_default_tier",
    "set_dependency",
    "set_descriptors",
    "set_model",
    "set_pod_protection",
    "set_price",
    "set_protection",
    "set_subject_limit",
    "set_template",
    "set_tenant_quota",
    "set_tier_quota",
    "set_tuning",
    "set_vendor_limit",
    "share_idle_slots",
    "suspend_tenant",
    "use_shipped_runbook",
]
