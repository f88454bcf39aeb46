"""The figures of a sidecar that its agent reports with each heartbeat."""

from collections.abc import Callable

from fuseboard.contract.sync import PermitCounters
from fuseboard.reporting.descriptor_tallies import DescriptorTallies


class SidecarFigures:
    """Empty in a pod that is no sidecar."""

    def __init__(self) -> None:
        #: The descriptors that Envoy asked for.
        self.descriptors = DescriptorTallies()
        #: Reads what became of permits; ``None`` if no other process has any. Safe in every thread.
        self.permits: Callable[[], PermitCounters] | None = None
