"""Stored actions are displayed in the present words: rows of the audit are never rewritten."""

import json
import re

import pytest

from dashboard.labels import _ACTIONS, action_verb, action_words
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


def test_an_action_and_its_target_read_as_one_sentence() -> None:
    for action, target, sentence in (
        ("schedule.applied", "production", "applied a scheduled change to production"),
        ("schedule.cancelled", "17 tenant acme", "cancelled scheduled change 17 tenant acme"),
        ("change_request.opened", "#7, quota changed, acme", "opened change request #7, quota changed, acme"),
        ("tenant_quota.ends_soon", "acme", "announced the end of a quota of acme"),
    ):
        assert f"{action_verb(action)} {target}" == sentence
