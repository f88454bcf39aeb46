"""The use that the limit in a form allows while Redis is down."""

from collections.abc import Mapping
from typing import Any

from controlplane.policies.document import environment_of, limit_of, tuning_of
from controlplane.policies.limits import set_columns
from controlplane.policies.models import TenantQuota
from controlplane.policies.without_redis import refuses_nearly_all, without_redis


def outage_words(environment: str, columns: Mapping[str, Any], *, pods: int) -> tuple[str, bool]:
    """Return one or two sentences, and whether pods would refuse nearly every call."""
    row = TenantQuota(name="limit")
    set_columns(row, columns)
    limit = limit_of(row)
    tuning = tuning_of(environment_of(environment))
    nearly_all = refuses_nearly_all(limit, pods=pods, tuning=tuning)
    words = without_redis(limit, pods=pods, tuning=tuning)
    rest = " Nearly every call is refused then." if nearly_all and "refuse every call" not in words else ""
    return words + rest, nearly_all
