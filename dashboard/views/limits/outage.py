"""The use that the limit in a form allows while Redis is down."""

from collections.abc import Mapping
from typing import Any

from controlplane.policies.document import environment_of, limit_of, tuning_of
from controlplane.policies.limits import set_columns
from controlplane.policies.models import TenantQuota
from controlplane.policies.without_redis import without_redis


def outage_words(environment: str, columns: Mapping[str, Any], *, pods: int) -> str:
    row = TenantQuota(name="limit")
    set_columns(row, columns)
    limit = limit_of(row)
    return without_redis(limit, pods=pods, tuning=tuning_of(environment_of(environment)))
