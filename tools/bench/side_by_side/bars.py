"""The bars, and the results."""

import sys
from dataclasses import dataclass, field


def say(line: str = "") -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    #: ``>=`` or ``<=``.
    sense: str
    value: float


#: In the order they are printed. docs/benchmarks.md explains them; docs/adr/0016 and 0032 moved some.
BARS = (
    Bar("decisions_vs_limits_200", ">=", 20),
    Bar("decisions_vs_limits_50", ">=", 10),
    Bar("decisions_vs_limits_1", "<=", 0.55),
    Bar("decisions_vs_stack_200", ">=", 80),
    Bar("decisions_vs_stack_50", ">=", 45),
    Bar("p99_vs_limits_200", "<=", 0.1),
    Bar("p99_vs_evalsha_200", "<=", 0.7),
    Bar("redis_cpu_vs_limits_200", "<=", 0.05),
    Bar("redis_cpu_vs_stack_200", "<=", 0.0167),
    Bar("redis_cpu_200_tenants_vs_limits", "<=", 0.25),
    Bar("redis_cpu_200_tenants_vs_stack", "<=", 0.08),
    Bar("p50_vs_limits_1", "<=", 0.9),
    Bar("p50_vs_stack_1", "<=", 0.3),
    Bar("p50_vs_evalsha_1", "<=", 1.75),
    Bar("redis_cpu_vs_limits_1", "<=", 1.55),
    Bar("redis_cpu_vs_stack_1", "<=", 0.53),
    Bar("one_redis_core_vs_limits", ">=", 12),
    Bar("deadline_cost", "<=", 0.05),
    Bar("false_timeouts", "<=", 0.01),
    Bar("fastapi_throughput_uvloop", ">=", 0.7),
    Bar("fastapi_throughput_asyncio", ">=", 0.65),
    Bar("lease_vs_monotonic", "<=", 2.5),
    Bar("lease_commands", "<=", 0.01),
    Bar("lease_redis_cpu_1k", "<=", 0.067),
    Bar("guarded_vs_semaphore", "<=", 4),
    Bar("guarded_vs_stack", "<=", 0.333),
    Bar("guarded_retried_vs_stack", "<=", 0.333),
    Bar("protection_off", "<=", 1.02),
)


@dataclass(slots=True)
class Results:
    """Ratios by the name of their bar, or why one could not be measured."""

    ratios: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def report(self) -> int:
        """Print every ratio with its bar; 1 when one is missed."""
        missed = []
        for bar in BARS:
            if bar.name in self.skipped:
                say(f"RATIO {bar.name} skipped: {self.skipped[bar.name]} (bar {bar.sense} {bar.value:g})")
                continue
            ratio = self.ratios[bar.name]
            say(f"RATIO {bar.name} {ratio:.3g} (bar {bar.sense} {bar.value:g})")
            # What is printed is what counts.
            shown = float(f"{ratio:.3g}")
            if not (shown >= bar.value if bar.sense == ">=" else shown <= bar.value):
                missed.append(bar.name)
        if missed:
            sys.stderr.write(f"Missed: {', '.join(missed)}\n")
        return 1 if missed else 0
