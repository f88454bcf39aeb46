"""The guide "How to add an alert" names every file that must change."""

import ast
import re
from pathlib import Path

from controlplane.alerts.rules.every import RULES

ROOT = Path(__file__).resolve().parents[2]
#: Files that name a rule and stay as they are when another one is added.
STAY = {
    "controlplane/alerts/erasure.py": "the alert about all tenants, which names the one with most refusals",
    "controlplane/checklist/protection_lines.py": "a line of the checklist, not a rule",
    "controlplane/gateway/emergency/watch.py": "a gateway that starts waits longer for the worker",
    "controlplane/monitoring/prometheus_rules.py": "a runbook, for what the product cannot see itself",
    "dashboard/live/charts.py": "a figure, not a rule",
    "dashboard/live/tiles.py": "a figure, not a rule",
    "dashboard/live/verdict.py": "a late Redis explains decisions that are made locally",
}
#: Keys that mean nothing but a rule.
KEYS = {rule.key for rule in RULES if "-" in rule.key or rule.key[-1].isdigit()}
#: Keys that also mean something else: ``open`` is a state too. They name a rule where a key is compared.
WORDS = {rule.key for rule in RULES} - KEYS


def guide() -> str:
    return (ROOT / "CONTRIBUTING.md").read_text().split("### How to add an alert")[1].split("###")[0]


def names_a_rule(text: str) -> bool:
    return any(
        node.value in KEYS if isinstance(node, ast.Constant) else compares_with_a_word(node)
        for node in ast.walk(ast.parse(text))
    )


def compares_with_a_word(node: ast.AST) -> bool:
    """Whether a key is compared: ``alert.key == "local"``, ``rule_of(row.key) in ("open", "near")``."""
    if not isinstance(node, ast.Compare) or not re.search(r"\b(key|rule_of\(.*\))$", ast.unparse(node.left)):
        return False
    compared = ast.walk(node.comparators[0])
    return any(isinstance(one, ast.Constant) and one.value in WORDS for one in compared)


def test_every_file_that_names_a_rule_is_in_the_guide_or_excluded_with_a_reason():
    files = [*ROOT.glob("controlplane/**/*.py"), *ROOT.glob("dashboard/**/*.py")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    # Most files name none: they need not be parsed.
    some = {name: text for name, text in texts.items() if any(f'"{key}"' in text for key in KEYS | WORDS)}
    found = {
        name
        for name, text in some.items()
        if not name.startswith("controlplane/alerts/rules/") and names_a_rule(text)
    }
    assert {name for name in found - set(STAY) if f"`{name}`" not in guide()} == set(), "read the row instead"
    assert set(STAY) - found == set(), "these name no rule any more"


def test_a_file_that_names_a_rule_is_found():
    assert names_a_rule("LEVELS = {'redis-down': 3}")
    assert names_a_rule("if alert.key == 'local': pass")
    assert names_a_rule("if rule_of(row.key) in ('silent', 'uncounted'): pass")
    assert not names_a_rule("state = 'open'")
