"""What the hub of this process drew last. The hub itself does not run in tests of pages."""

from dataclasses import replace

import pytest

from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.status.read_facts import read_facts
from dashboard.hub import hub
from dashboard.live.history import History
from dashboard.live.overview import Live, build


def draw(monkeypatch: pytest.MonkeyPatch, *, ago_s: float = 0.0) -> Live:
    """Draw the fleet of production as the hub does."""
    facts = read_facts("production")
    facts = replace(facts, now=facts.now - ago_s, as_of=facts.as_of - ago_s)
    live = build(facts, History(), FirstSeen())
    monkeypatch.setattr(hub.of("production"), "live", live)
    return live
