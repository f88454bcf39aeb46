"""Where a dependency's breaker starts from, by its kind."""

from controlplane.policies.models import Kind

#: Kind -> breaker columns that differ from the model's defaults.
PRESETS: dict[str, dict[str, int]] = {
    Kind.LLM: {"consecutive_failures": 3, "open_ms": 60_000, "slow_ms": 30_000},
    Kind.EXTERNAL: {"consecutive_failures": 5, "open_ms": 60_000, "slow_ms": 10_000},
    Kind.DATABASE: {"consecutive_failures": 3, "open_ms": 30_000, "slow_ms": 5_000},
    Kind.INTERNAL: {"consecutive_failures": 5, "open_ms": 30_000, "slow_ms": 5_000},
}
