"""The replay of an edit: what the last days would have been with what was typed."""

from typing import Any

import pytest

from controlplane.one_at_a_time import alone
from tests.dashboard.editor_steps import head, page, quota

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ada(log_in: Any, production: str) -> Any:
    quota()
    return log_in("ada")


def test_n3_one_replay_of_a_person_runs_at_a_time(ada: Any) -> None:
    typed = {"base": head(), "limit.requests.limit": "900"}
    preview = page(ada.post("/edit/tier/preview?key=pro", typed))
    assert 'hx-post="/edit/tier/replay?key=pro"' in preview
    assert "Effect unknown" not in preview
    assert "Effect unknown" in page(ada.post("/edit/tier/replay?key=pro", typed))
    with alone("user:ada"):
        busy = page(ada.post("/edit/tier/replay?key=pro", typed))
    assert "An earlier replay still runs" in busy
    assert "load delay:2s" in busy
    title = page(ada.post("/edit/tier/preview?key=pro", {"base": head(), "own.title": "Pro"}))
    assert "/edit/tier/replay" not in title
