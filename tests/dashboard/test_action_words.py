"""Stored actions are displayed in the present words: rows of the audit are never rewritten."""

import json
import re
from dataclasses import replace

import pytest

from controlplane.audit.action_words import _ACTIONS, action_verb, action_words, proposal_words
from controlplane.policies.setting_labels import BREAKER
from controlplane.status.facts import Change
from dashboard.live.change_lines import line_of
from dashboard.words.browsers import browser_words
from dashboard.words.labels import difference, left_off
from dashboard.words.setting_lines import value_text
from fuseboard.contract.limit_fields import FIELDS, Number
from fuseboard.contract.protection_fields import CALL_SETTINGS, POD_SETTINGS
from tests.contract.compat.compare import RECORD

#: Words of version 0.1.0 that the pages no longer use.
OLD_WORDS = re.compile(r"\b(hold|holds|held|release|released|anew|begun|made)\b", re.IGNORECASE)


@pytest.mark.parametrize("action", json.loads((RECORD / "audit_actions.json").read_text()))
def test_an_action_of_version_0_1_0_is_displayed_in_present_words(action: str) -> None:
    assert action in _ACTIONS, "its words, made from its name, are no sentence"
    for text in (action_words(action), action_verb(action)):
        assert text
        assert not OLD_WORDS.search(text), text
        assert not set("._") & set(text), text


PROPOSED = re.compile(
    r"(account|approvals|breaker_policy|budget|change|configuration|default_tier|dependency|model|model_price"
    r"|plan|pod_protection|protection|revision|runbook|subject_limit|template|tenants?|tenant_quota|tier"
    r"|tier_quota|tuning|vendor_limit)\.(?!ends_soon)"
)


@pytest.mark.parametrize("action", sorted(filter(PROPOSED.match, _ACTIONS)))
def test_what_is_proposed_is_not_told_in_the_past_tense(action: str) -> None:
    """S3.31: a change request that waited was headed "Quota changed: initech Open"."""
    assert not re.match(r"\w+ed\b", proposal_words(action, "initech")), proposal_words(action, "initech")


def test_what_was_not_there_before_is_added_and_not_changed() -> None:
    """Changes had "Template changed: Created template partner"."""
    limit = {"vendor_limits.contract.limit": 100, "version": 2}
    first = Change(
        at=0.0, actor="ada", human=True, action="vendor_limit.set", target="llm", before={"version": 1},
        after=limit,
    )  # fmt: skip
    assert (line_of(first).action, line_of(first).verb) == ("Vendor limit added", "added a vendor limit of")
    raised = replace(first, before={"vendor_limits.contract.limit": 50, "version": 1})
    assert line_of(raised).action == "Vendor limit changed"
    # The entry of an edit has all fields of the dependency.
    dependency = {"title": "LLM", "breaker.ratio": 50, "vendor_limits.other.limit": 9, "version": 1}
    assert line_of(replace(first, before=dependency, after=dependency | limit)).action == "Vendor limit added"
    raised = replace(
        first, before=dependency | limit, after=dependency | limit | {"vendor_limits.contract.burst": 5}
    )
    assert line_of(raised).action == "Vendor limit changed", "the limit was there"
    template = replace(first, action="template.set", before=None, after={"limit": 100})
    assert line_of(template).action == "Template added"
    assert line_of(replace(template, action="tuning.set")).action == "Tuning changed", "it is always there"


def test_a_proposal_reads_as_a_task() -> None:
    assert proposal_words("tenant_quota.set", "initech") == "Change a quota of initech"
    assert proposal_words("tenant_quota.set") == "Change a quota"
    assert proposal_words("configuration.rolled_back", "production") == "Roll back production"
    assert proposal_words("change.scheduled", "tenant acme") == "Schedule a change of tenant acme"


@pytest.mark.parametrize(
    ("action", "kind", "target", "sentence"),
    [
        ("schedule.applied", "environment", "production", "applied a scheduled change to production"),
        ("schedule.cancelled", "schedule", "17 tenant acme", "cancelled scheduled change 17, tenant acme"),
        (
            "change_request.opened",
            "change_request",
            "#7 tenant_quota.set acme",
            "opened change request 7, change a quota, acme",
        ),
        ("tenant_quota.ends_soon", "tenant", "acme", "announced the end of a quota of acme"),
    ],
)
def test_an_action_and_its_target_read_as_one_sentence(
    action: str, kind: str, target: str, sentence: str
) -> None:
    line = line_of(Change(at=0.0, actor="ada", human=True, action=action, target=target, target_kind=kind))
    assert f"{line.verb} {line.target}" == sentence


def test_a_change_by_a_token_says_so() -> None:
    """The audit named its author "3fa8c1d2e4b5f607 of ada"."""
    change = Change(at=0.0, actor="deploy", human=False, action="tier.created", target="pro")
    by = replace(change, token="3fa8c1d2e4b5f607", owner="ada")
    assert line_of(by).by_token == "token 3fa8c1d2e4b5f607 of ada"
    assert line_of(replace(by, owner="")).by_token == "token 3fa8c1d2e4b5f607, without owner"
    assert line_of(change).by_token == ""


def test_values_of_requests_and_drills_have_the_words_of_their_pages() -> None:
    assert difference(None, {"state": "open", "things": 1})[1] == "waiting for approval, 1 item"
    assert difference(None, {"state": "open", "things": 2000})[1] == "waiting for approval, 2,000 items"
    planned = {"due_at": "2026-11-30T17:46:09+00:00", "state": "waiting"}
    assert difference(None, planned)[1] == "due 30 Nov 2026 17:46 UTC, scheduled"
    assert difference(None, {"selector": "b1136901b63ea083"})[1] == "token b1136901b63ea083"
    limit = {"quotas.requests.limit": 45, "quotas.requests.burst": 30, "quotas.requests.window_s": 1}
    assert difference(None, limit)[1] == "requests limit 45 per s, requests burst 30"
    window = {**limit, "quotas.requests.burst": 1, "quotas.requests.algorithm": "sliding_window"}
    assert difference(None, window)[1] == "requests limit 45 per s", "a window has no burst"
    assert difference(None, {"kind": "gone"})[1] == "Redis unreachable"
    assert difference(None, {"kind": "external"})[1] == "kind external"
    assert difference({"needed": 0}, {"needed": 2}) == ("0 approvals", "2 approvals")


def test_values_carry_their_units_and_moments_are_readable() -> None:
    tuning = {"failure_window_ms": 2_000, "store_deadline_us": 20_000}
    assert difference(None, tuning)[1] == "failure window 2,000 ms, store deadline 20,000 \u00b5s"
    assert difference(None, {"failure_percent": 50})[1] == "failure 50 %"
    announced = {"at": "2026-11-22T15:39:19+00:00"}
    assert difference(None, announced) == ("", "22 Nov 2026 15:39 UTC")


#: The end of a field -> the end of its value in words. A part that observes has a moment.
SUFFIXES = {
    "_until_us": "until 1 Jan 1970 00:00 UTC",
    "_per_s": " 10/s",
    "_s": " 10 s",
    "_ms": " 10 ms",
    "_us": " 10 \u00b5s",
    "_percent": " 10 %",
    "_milli": " 0.01/s",
}
#: Fields of everything that people edit, as revisions store them.
NUMBERS = sorted(
    {setting.path for setting in (*CALL_SETTINGS, *POD_SETTINGS) if setting.kind == "number"}
    | {f"breaker.{column}" for column in BREAKER}
    | {f"quotas.requests.{each.name}" for each in FIELDS if isinstance(each, Number)}
    | {"sla_ms", "timeout_ms", "wait_ms", "store_deadline_us", "retries_per_s", "retry.floor_milli"}
)


@pytest.mark.parametrize("field", NUMBERS)
def test_the_suffix_of_a_field_is_the_unit_after_its_value(field: str) -> None:
    """The audit had "retries per 10 s" of 10 retries per second."""
    shown = difference(None, {field: 10})[1]
    suffix = next((unit for unit in SUFFIXES if field.endswith(unit)), "")
    if suffix:
        assert shown.endswith(SUFFIXES[suffix]), shown
        assert not re.search(r"\b(per|ms|us|s|percent|milli) [0-9.]", shown), shown
    else:
        assert re.search(r" 10$", shown), shown
    moved = left_off({"a_mode": "x", "b_mode": "x", field: 10}, {"a_mode": "y", "b_mode": "y", field: 20})
    assert all("_" not in line and not re.search(r"\b(per s|ms|us|milli):", line) for line in moved)


def test_a_rate_of_a_setting_has_one_notation() -> None:
    assert difference({"retries_per_s": 10}, {"retries_per_s": 20}) == ("retries 10/s", "retries 20/s")
    shown = left_off(
        {"tier": "a", "limit": 1, "retries_per_s": 10}, {"tier": "b", "limit": 2, "retries_per_s": 20}
    )
    assert shown == ["retries: 10/s to 20/s"]
    assert value_text("protection.retries_per_s", 10) == "10/s"
    assert value_text("protection.retry.floor_milli", 1_500) == "1.5/s"


def test_moments_that_differ_by_seconds_are_not_displayed_as_a_change() -> None:
    before, after = ({"expires_at": f"2026-11-22T18:38:{second}+00:00"} for second in ("27", "39"))
    assert difference(before, after) == ("", "until 22 Nov 18:38 UTC")
    later = {"expires_at": "2026-11-22T19:00:00+00:00"}
    assert difference(before, later) == ("until 22 Nov 18:38 UTC", "until 22 Nov 19:00 UTC")


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/126.0 Safari/537.36", "Chrome on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/126.0 Safari/537.36 Edg/126.0", "Edge on Windows"),
        ("Mozilla/5.0 (Linux; Android 14) Chrome/126.0 Mobile Safari/537.36", "Chrome on Android"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) Safari/604.1", "Safari on iPhone"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15) Firefox/127.0", "Firefox on macOS"),
        ("curl/8.5.0", "curl"),
        ("a program of ours", "a program of ours"),
        ("", ""),
    ],
)
def test_a_browser_of_a_session_has_its_name_and_system(agent: str, words: str) -> None:
    assert browser_words(agent) == words
