"""Parts that several expressions of Prometheus have: see ``PrometheusQuery``."""

#: Ends of a summary.
IN_ENVIRONMENT = "in {{ $labels.environment }}"
NAMES_DEPENDENCY = "{{ $labels.dependency }} " + IN_ENVIRONMENT

_LIVE = 'state=~"online|late"'
LOCAL_PODS = f'max by (environment) (sum without (state) (fuseboard_fleet_servers{{mode="local",{_LIVE}}}))'
LIVE_PODS = f"max by (environment) (sum without (state, mode) (fuseboard_fleet_servers{{{_LIVE}}}))"
REQUESTS = "fuseboard_fleet_requests_per_second"
USED_CAPACITY = (
    "max by (node) (fuseboard_redis_ops_per_second) / max by (node) (fuseboard_redis_capacity_ops)"
)


def share(part: str, whole: str) -> str:
    return f"sum by (environment) ({part}) / (sum by (environment) ({whole}) > 1)"


def by_environment(metric: str) -> str:
    """The largest value that a process of an environment has."""
    return f"max by (environment) ({metric})"


def by_dependency(metric: str) -> str:
    return f"max by (environment, dependency) ({metric})"
