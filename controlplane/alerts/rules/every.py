"""Every alert rule, in the order in which pages display what they find, after critical ones.

To add an alert, add a row to the module of its subject here. A rule sees a status and nothing else, no
database and no clock, so the worker, the API and every web process find the same. Of rules with the same
key, which are levels of one alert, the first whose test is true counts.
"""

from typing import Any

from controlplane.alerts.rules.backlogs import BACKLOG_RULES
from controlplane.alerts.rules.expiry import EXPIRY_RULES
from controlplane.alerts.rules.fleet import FLEET_RULES
from controlplane.alerts.rules.locks import LOCK_RULES
from controlplane.alerts.rules.protection import PROTECTION_RULES
from controlplane.alerts.rules.redis import STORE_RULES
from controlplane.alerts.rules.rule import Rule
from controlplane.alerts.rules.sources import SOURCE_RULES
from controlplane.alerts.rules.traffic import TRAFFIC_RULES

RULES: tuple[Rule[Any], ...] = (
    *FLEET_RULES,
    *PROTECTION_RULES,
    *BACKLOG_RULES,
    *LOCK_RULES,
    *SOURCE_RULES,
    *STORE_RULES,
    *TRAFFIC_RULES,
    *EXPIRY_RULES,
)
