"""Stored actions are displayed in the present words: rows of the audit are never rewritten."""

import json
import re

import pytest

from dashboard.words import action_verb, action_words
from tests.contract.compat.compare import RECORD

#: Words of version 0.1.0 that the pages no longer use.
OLD_WORDS = re.compile(r"\b(hold|holds|held|release|released|anew|begun|made)\b", re.IGNORECASE)


@pytest.mark.parametrize("action", json.loads((RECORD / "audit_actions.json").read_text()))
def test_an_action_of_version_0_1_0_is_displayed_in_present_words(action: str) -> None:
    for text in (action_words(action), action_verb(action)):
        assert text
        assert not OLD_WORDS.search(text), text
        assert not set("._") & set(text), text
