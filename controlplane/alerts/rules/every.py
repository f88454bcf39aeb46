"""Every alert rule, in the order in which pages display what they find, after critical ones.

To add an alert, add a row to the module of its subject here. A rule sees a status and nothing else, no
database and no clock, so the worker, the API and every web process find the same.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from controlplane.alerts.rules.backlogs import BACKLOG_RULES
from controlplane.alerts.rules.breakers import BREAKER_RULES
from controlplane.alerts.rules.expiry import EXPIRY_RULES
from controlplane.alerts.rules.fleet import FLEET_RULES
from controlplane.alerts.rules.locks import LOCK_RULES
from controlplane.alerts.rules.permits import PERMIT_RULES
from controlplane.alerts.rules.protection import PROTECTION_RULES
from controlplane.alerts.rules.redis import STORE_RULES
from controlplane.alerts.rules.rule import Rule, Timing, rule_of
from controlplane.alerts.rules.secret_key import SECRET_KEY
from controlplane.alerts.rules.sources import AUDIT_EXPORT, SOURCE_RULES, blind_rule
from controlplane.alerts.rules.spending import SPENDING_RULES
from controlplane.alerts.rules.traffic import TRAFFIC_RULES
from controlplane.alerts.rules.vendor_limits import VENDOR_LIMIT_RULES

#: In this order: those before the rule about figures that are missing, and those after it.
_BEFORE: tuple[Rule[Any], ...] = (
    *FLEET_RULES,
    *BREAKER_RULES,
    *PROTECTION_RULES,
    *BACKLOG_RULES,
    *LOCK_RULES,
    *PERMIT_RULES,
    AUDIT_EXPORT,
)
_AFTER: tuple[Rule[Any], ...] = (
    *SOURCE_RULES,
    *STORE_RULES,
    *TRAFFIC_RULES,
    *SPENDING_RULES,
    *VENDOR_LIMIT_RULES,
    *EXPIRY_RULES,
    SECRET_KEY,
)
RULES: tuple[Rule[Any], ...] = (*_BEFORE, blind_rule((*_BEFORE, *_AFTER)), *_AFTER)
RULE_OF_KEY: Mapping[str, Rule[Any]] = MappingProxyType({rule.key: rule for rule in RULES})
#: The timing of a rule that this version does not know: another version stored its alert, and it is resolved
#: here.
_UNKNOWN = Timing(level=1, fires_after_s=0, resolves_after_s=60)


def timing_of(key: str) -> Timing:
    """The timing of an alert by its key: ``open:payments-api`` has that of ``open``."""
    rule = RULE_OF_KEY.get(rule_of(key))
    return rule.timing if rule is not None else _UNKNOWN
