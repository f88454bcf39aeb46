"""The guide "How to add an alert" names every file that must change."""

import ast
from pathlib import Path

from controlplane.alerts.rules.every import RULES

ROOT = Path(__file__).resolve().parents[2]
#: Files that name a rule and stay as they are when another one is added.
STAY = {
    "controlplane/alerts/erasure.py": "the alert about all tenants, which names the one with most refusals",
    "controlplane/alerts/state/history.py": "the rules whose figures are stored",
    "controlplane/checklist/protection_lines.py": "a line of the checklist, not a rule",
    "controlplane/gateway/emergency/watch.py": "a gateway that starts waits longer for the worker",
    "dashboard/live/charts.py": "a figure, not a rule",
    "dashboard/live/tiles.py": "a figure, not a rule",
    "dashboard/live/verdict.py": "a late Redis explains decisions that are made locally",
}
#: Keys that mean nothing but a rule. ``open`` is also a state.
KEYS = {rule.key for rule in RULES if "-" in rule.key or rule.key[-1].isdigit()}


def guide() -> str:
    return (ROOT / "CONTRIBUTING.md").read_text().split("### How to add an alert")[1].split("###")[0]


def names_a_rule(text: str) -> bool:
    return any(isinstance(one, ast.Constant) and one.value in KEYS for one in ast.walk(ast.parse(text)))


def test_every_file_that_names_a_rule_is_in_the_guide_or_excluded_with_a_reason():
    files = [*ROOT.glob("controlplane/**/*.py"), *ROOT.glob("dashboard/**/*.py")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    # Most files name none: they need not be parsed.
    some = {name: text for name, text in texts.items() if any(f'"{key}"' in text for key in KEYS)}
    found = {
        name
        for name, text in some.items()
        if not name.startswith("controlplane/alerts/rules/") and names_a_rule(text)
    }
    assert "controlplane/monitoring/prometheus_rules.py" in found
    assert {name for name in found - set(STAY) if f"`{name}`" not in guide()} == set(), "read the row instead"
    assert set(STAY) - found == set(), "these name no rule any more"


def test_a_file_that_names_a_rule_is_found():
    assert names_a_rule("LEVELS = {'redis-down': 3}")
    assert not names_a_rule("state = 'open'")
