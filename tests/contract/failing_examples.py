"""What the golden file of a pod with failed calls says."""

from fuseboard.contract.failures import DependencyFailures, FailedCall
from fuseboard.contract.words import Outcome

FAILURES = (
    DependencyFailures(
        dependency="openai",
        kinds={"HTTP 503": 7, "timeout": 2, "slow": 1},
        last=(
            FailedCall(number=9, kind="HTTP 503", ago_ms=2_500, trace="4bf92f3577b34da6a3ce929d0e0e4736"),
            FailedCall(number=10, kind="slow", outcome=Outcome.SLOW),
        ),
    ),
    DependencyFailures(dependency="ledger", kinds={"ConnectError": 1}),
)
