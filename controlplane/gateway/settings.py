"""Settings of a gateway process, read once from the environment."""

import socket
from dataclasses import dataclass

from django.conf import settings

from controlplane import env


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    #: The name of this process in ``fleet.Figures``. It stays the same after a restart.
    gateway: str = "gateway"
    #: Time between two heartbeats of a pod in a small fleet.
    beat_ms: int = 5_000
    #: Heartbeats per second that one process takes. Pods of a larger fleet send them less often.
    beats_per_s: int = 2_000
    #: Requests per second of one token, which many pods can share.
    token_rate_per_s: int = 4_000
    token_burst: int = 20_000
    #: Pods with new names, and further processes under known ones, that one token can bring per minute, to
    #: each gateway.
    new_pods_per_min: int = 500
    #: A bearer token for /metrics only. The token of an agent shows its own environment only.
    metrics_token: str = ""
    #: How often the head in Postgres is compared, with or without notifications.
    reload_s: float = 5.0
    flush_s: float = 1.0
    #: If Postgres takes longer for a batch, the next attempt uses a new connection.
    flush_timeout_s: float = 3.0
    #: Where it keeps receivers and what it said, for the time without Postgres; empty for neither.
    oncall_dir: str = ""
    #: After this time without an evaluation by a worker, it sends alerts of level 3 itself.
    oncall_after_s: float = 30.0
    #: Whether the process does nothing else. Its garbage collector is tuned then.
    alone: bool = False


def from_environment(*, port: int = 0, alone: bool = False) -> GatewaySettings:
    """Raises ``ImproperlyConfigured``, naming the variable."""
    return GatewaySettings(
        gateway=f"{socket.gethostname()}:{port}"[-100:],
        beat_ms=env.integer("FUSEBOARD_BEAT_MS", 5_000, at_least=50, at_most=600_000),
        beats_per_s=env.integer("FUSEBOARD_BEATS_PER_S", 2_000, at_least=1, at_most=100_000),
        token_rate_per_s=env.integer("FUSEBOARD_TOKEN_RATE_PER_S", 4_000, at_least=1, at_most=1_000_000),
        token_burst=env.integer("FUSEBOARD_TOKEN_BURST", 20_000, at_least=1, at_most=10_000_000),
        new_pods_per_min=env.integer("FUSEBOARD_NEW_PODS_PER_MIN", 500, at_least=1, at_most=1_000_000),
        metrics_token=env.text("FUSEBOARD_METRICS_TOKEN"),
        oncall_dir=env.text("FUSEBOARD_ONCALL_DIR", str(settings.DATA_DIR / "oncall")),
        oncall_after_s=env.integer("FUSEBOARD_ONCALL_AFTER_S", 30, at_least=10, at_most=600),
        alone=alone,
    )
