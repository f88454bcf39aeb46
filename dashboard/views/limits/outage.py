"""The use that the limit in a form allows while Redis is down."""

from collections.abc import Mapping
from typing import Any

from controlplane.policies.document import environment_of, limit_of, tuning_of
from controlplane.policies.limits import set_columns
from controlplane.policies.models import TenantQuota
from controlplane.policies.without_redis import refuses_most, without_redis
from fuseboard.contract.words import FailurePolicy


def outage_words(environment: str, columns: Mapping[str, Any], *, pods: int) -> tuple[str, bool]:
    """Return one or two sentences, and whether pods would refuse most calls."""
    row = TenantQuota(name="limit")
    set_columns(row, columns)
    limit = limit_of(row)
    tuning = tuning_of(environment_of(environment))
    most = refuses_most(limit, pods=pods, tuning=tuning)
    words = without_redis(limit, pods=pods, tuning=tuning)
    reserved = limit.failure_policy is FailurePolicy.RESERVED and "refuse every call" not in words
    return words + (" Nearly every call is refused then." if most and reserved else ""), most
