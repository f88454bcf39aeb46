"""The configuration as a file: read it, preview its changes, apply it as one revision, export it.

What a file does not contain stays as it is. ``prune`` removes what its sections do not contain.
"""

from controlplane.editing.plans.apply import apply_plan
from controlplane.editing.plans.copying import copy_configuration
from controlplane.editing.plans.difference import Difference, difference
from controlplane.editing.plans.export import export_csv, export_plan
from controlplane.editing.plans.plan import MAX_BYTES, MAX_ROWS, LineError, Plan, PlanErrors
from controlplane.editing.plans.reading import plan_from_document, read_plan

__all__ = [
    "MAX_BYTES",
    "MAX_ROWS",
    "Difference",
    "LineError",
    "Plan",
    "PlanErrors",
    "apply_plan",
    "copy_configuration",
    "difference",
    "export_csv",
    "export_plan",
    "plan_from_document",
    "read_plan",
]
