"""The format of runbooks, and the shipped ones: each alert and each dependency has one that parses."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.alerts.rules.every import RULES
from controlplane.alerts.rules.fleet import GENERAL_RUNBOOK
from controlplane.monitoring.prometheus_rules import PROMETHEUS_RULES
from controlplane.runbooks.format import (
    ACTIONS,
    LONGEST_STEP,
    MAX_STEPS,
    SECTIONS,
    VALUES,
    read_runbook,
)
from controlplane.runbooks.shipped import shipped, split_title
from tests.repo.test_compose import SERVICES
from tools.demo.scenario import DEPENDENCIES

#: What the product promises to ship, whatever a rule names.
PROMISED = (
    "all-pods-local",
    "breaker-open",
    "bulkhead-full",
    "configuration-lag",
    "control-plane-down",
    "hot-key",
    "lua-error",
    "postgres-away",
    "reconciliation-failed",
    "redis-memory",
    "redis-slow",
    "redis-split",
    "redis-unreachable",
    "refused-caller",
    "retry-budget-spent",
    "runaway-tenant",
    "shedding",
    "token-or-certificate-expires",
    "vendor-401-403",
    "vendor-429",
)
STEPS = "- [ ] **Look** at `it`\n- [x] Call\n  them\n- no step\n"
BODY = f"## Symptoms\n\nIt is slow.\n\n## Resolution\n\n{STEPS}"


def test_every_alert_rule_names_a_shipped_runbook() -> None:
    named = {rule.runbook for rule in RULES} | {rule.runbook for rule in PROMETHEUS_RULES}
    assert named <= set(shipped()), named - set(shipped())


def test_every_dependency_of_the_demo_has_a_runbook_and_every_other_one_the_general_one() -> None:
    assert {played.runbook for played in DEPENDENCIES} <= set(shipped())
    assert GENERAL_RUNBOOK in shipped()
    assert "dependency" in shipped()[GENERAL_RUNBOOK].body


def test_every_promised_runbook_is_shipped() -> None:
    assert set(PROMISED) <= set(shipped())


@pytest.mark.parametrize("slug", shipped())
def test_a_shipped_runbook_has_all_sections_and_steps_and_no_problem(slug: str) -> None:
    text = shipped()[slug]
    document = read_runbook(text.body)
    assert text.title
    assert document.to_correct == ()
    assert document.sections == SECTIONS
    assert len(document.steps) >= 2, "what a person can tick"
    assert "## Symptoms\n\n" in text.body


@pytest.mark.parametrize("slug", shipped())
def test_a_link_of_a_shipped_runbook_leads_to_another_one_or_to_a_page(slug: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", shipped()[slug].body):
        assert target.removesuffix(".md") in shipped() or target.startswith("/"), target


def test_a_process_that_a_runbook_asks_has_the_port_of_its_service() -> None:
    """The first one asked gateways at the port of web."""
    ports = {name: SERVICES[name]["command"] for name in ("web", "gateway")}
    ports = {name: words[words.index("--port") + 1] for name, words in ports.items()}
    text = "\n".join(runbook.body for runbook in shipped().values())
    asked = re.findall(r"\b(web|gateway):(\d+)\b", text)
    assert {name for name, _ in asked} == set(ports)
    assert [(name, port) for name, port in asked if ports[name] != port] == []
    assert f"http://ADDRESS:{ports['web']}/healthz` at each web process" in text


def test_the_words_of_a_step_are_without_markup_and_keep_its_key_when_it_moves() -> None:
    first, second = read_runbook(BODY).steps
    assert (first.number, first.text) == (1, "Look at it")
    assert (second.number, second.text) == (2, "Call them")
    moved = read_runbook(BODY.replace("- [ ] **Look** at `it`\n", "") + "- [ ] Look at it\n").steps
    assert {step.key for step in moved} == {first.key, second.key}
    assert moved[1].number == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{{ value "nothing" }}', "There is no value nothing"),
        ('{{ value "redis_p99" dependency }}', 'Write the value as {{ value "redis_p99" }}.'),
        ('{{ value "breaker_state" }}', 'Write the value as {{ value "breaker_state" dependency }}.'),
        ("```action drop-database\n```", "There is no action drop-database"),
        ("```action reset-breaker\nnow\n```", "must be empty"),
        ("- [ ] Wait\n- [ ] Wait", "Two steps have the same words: Wait"),
        (f"- [ ] {'x' * (LONGEST_STEP + 1)}", "needs 1 to 500 characters"),
        ("\n".join(f"- [ ] Step {number}" for number in range(MAX_STEPS + 1)), "at most 99 steps"),
        ("```action Reset\n```", "Write an action as ```action reset-breaker"),
        ("{{ value redis_p99 }}", "{{ value redis_p99 }} is not a value"),
        ("## Impact\n\n## Symptoms", "in this order"),
        ("## Impact\n\n## Impact", "The section Impact is there twice"),
    ],
)
def test_what_a_person_has_to_correct_is_named(text: str, problem: str) -> None:
    assert any(problem in found for found in read_runbook(text).problems)


def test_a_text_is_complete_when_every_section_has_some() -> None:
    document = read_runbook(BODY + "\n## Verification\n\n## Escalation\n\nCall the owner.\n")
    assert document.problems == ()
    assert document.to_correct == (
        "Add the section ## Impact.",
        "Write something below ## Verification.",
    )
    assert read_runbook("").to_correct == tuple(f"Add the section ## {name}." for name in SECTIONS)


def test_a_value_in_code_is_text() -> None:
    tokens = read_runbook('`{{ value "nothing" }}`').tokens
    assert [child.type for child in tokens[1].children or ()] == ["code_inline"]


def test_the_title_is_the_first_heading() -> None:
    assert split_title("# Redis is down\n\n## Symptoms\n").title == "Redis is down"
    assert split_title("## Symptoms\n\nSlow.").title == ""


def test_closed_lists_have_no_doubles_and_known_subjects() -> None:
    assert set(VALUES.values()) == {"", "dependency"}
    assert {action.of for action in ACTIONS.values()} == {"", "dependency"}


@given(st.text(alphabet='-[] x\n\t{}"`#*_<>&|1.aé\\!()value', max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    document = read_runbook(text)
    assert [step.number for step in document.steps] == list(range(1, len(document.steps) + 1))
