"""Whether an environment has limits that refuse nothing at all. Blocking: call it in a thread."""

from django.db import connection

#: Stops at the first limit that refuses, which nearly every environment has in a tier.
_LIMITS = """
    SELECT quota.shadow FROM policies_tierquota quota JOIN policies_tier tier ON tier.id = quota.tier_id
    WHERE tier.environment_id = %(environment)s
    UNION ALL
    SELECT shadow FROM policies_subjectlimit WHERE environment_id = %(environment)s
    UNION ALL
    SELECT quota.shadow FROM policies_tenantquota quota JOIN policies_tenant tenant
        ON tenant.id = quota.tenant_id
    WHERE tenant.environment_id = %(environment)s AND NOT tenant.deleted
"""
_NOTHING_LIMITED = f"""
    SELECT NOT EXISTS (SELECT FROM ({_LIMITS}) AS limits WHERE NOT shadow)
       AND EXISTS (SELECT FROM ({_LIMITS}) AS limits)
"""  # noqa: S608 - two texts of this code


def nothing_is_limited(environment: str) -> bool:
    """Whether there are limits, and every one of them is a shadow."""
    with connection.cursor() as cursor:
        cursor.execute(_NOTHING_LIMITED, {"environment": environment})
        return bool(cursor.fetchone()[0])
