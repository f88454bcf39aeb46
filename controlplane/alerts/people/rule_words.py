"""Alert rules as people choose and read them: a sentence for each key, grouped by subject."""

from collections.abc import Iterable
from typing import Any

from controlplane.alerts.rules.every import RULE_OF_KEY, RULES
from controlplane.alerts.rules.expiry import EXPIRY_RULES
from controlplane.alerts.rules.fleet import FLEET_RULES
from controlplane.alerts.rules.locks import LOCK_RULES
from controlplane.alerts.rules.protection import PROTECTION_RULES
from controlplane.alerts.rules.redis import STORE_RULES
from controlplane.alerts.rules.rule import Rule
from controlplane.alerts.rules.traffic import TRAFFIC_RULES
from controlplane.alerts.rules.vendor_limits import VENDOR_LIMIT_RULES
from controlplane.audit.action_words import named_target

RULES_TO_MUTE = tuple(sorted(rule.key for rule in RULES if rule.alerts))
#: The key of a rule and its sentence, as a form offers them.
Choice = tuple[str, str]


def sentence_of(key: str) -> str:
    """The sentence of a rule, such as ``A breaker is open``. The key, for an unknown rule."""
    rule = RULE_OF_KEY.get(key)
    return f"{rule.describes[:1].upper()}{rule.describes[1:]}" if rule is not None else key


def target_in_words(kind: str, name: str) -> str:
    """The target of an entry of the audit: the alert ``open:search`` to "A breaker is open: search"."""
    if kind != "alert":
        return named_target(kind, name)
    rule, _, of = name.partition(":")
    return f"{sentence_of(rule)}: {of.replace(':', ', ')}" if of else sentence_of(rule)


def _grouped() -> tuple[tuple[str, tuple[Choice, ...]], ...]:
    """Every rule once: rules of dependencies first, and those of no other subject last."""
    left = {rule.key: rule for rule in RULES if rule.alerts}
    subjects: tuple[tuple[str, Iterable[Rule[Any]]], ...] = (
        ("Dependencies and breakers", [rule for rule in RULES if rule.of_dependency]),
        ("Pods and configuration", (*FLEET_RULES, *VENDOR_LIMIT_RULES)),
        ("Traffic and tenants", TRAFFIC_RULES),
        ("Protection and locks", (*PROTECTION_RULES, *LOCK_RULES)),
        ("Redis, Postgres and processes", STORE_RULES),
        ("Tokens and certificates", EXPIRY_RULES),
        ("Figures and exports", RULES),
    )
    groups = []
    for subject, rules in subjects:
        keys = [rule.key for rule in rules if left.pop(rule.key, None) is not None]
        pairs = sorted(((key, sentence_of(key)) for key in keys), key=lambda pair: pair[1])
        groups.append((subject, tuple(pairs)))
    return tuple(groups)


#: Subject -> its rules, for the groups of a list to choose from.
RULE_CHOICES = _grouped()
