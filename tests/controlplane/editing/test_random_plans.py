"""Whatever a plan contains, it is resolved, or refused with the place of each error."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.editing import edits
from controlplane.editing.plans import plan_from_document
from controlplane.editing.plans.plan import PlanErrors
from controlplane.editing.plans.resolving import resolve
from controlplane.policies.state import State, read_state
from tests.people import BOB

WHY: dict[str, Any] = {"reason": "for a test"}
NUMBERS = (0, 1, -1, 60, 1.5, True, 10**30)
TEXTS = ("", "x", "gold", "openai", "acme", "off", "2026-13-01", "2030-01-01T00:00:00Z")
VALUES = st.sampled_from([None, [], {}, ["a"], {"a": 1}, *NUMBERS, *TEXTS])
COLUMNS = ("limit", "window_s", "algorithm", "burst", "period", "dependency", "expires_at", "template", "own")
PRICES = ("input", "output", "cached", "long_above", "long_input", "missing")
RATE = {"limit": st.sampled_from([5, 1, 0]), "window_s": st.sampled_from([60, 1])}
LIMITS = st.one_of(
    VALUES,
    st.fixed_dictionaries(RATE, optional=dict.fromkeys(COLUMNS[2:], VALUES)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(COLUMNS, VALUES)),
    st.fixed_dictionaries({"template": st.sampled_from(["shared", "missing"])}),
)
QUOTAS = st.dictionaries(st.sampled_from(["requests", "a.b"]), LIMITS, max_size=2)
BREAKER = st.dictionaries(st.sampled_from(["open_ms", "window_calls", "missing"]), VALUES, max_size=2)
PROTECTION = st.dictionaries(
    st.sampled_from(["retry", "bulkhead", "shedding", "missing"]), VALUES, max_size=2
)


def things(names: list[str], **optional: Any) -> Any:
    fields = st.fixed_dictionaries({}, optional={"title": st.just("Title"), **optional})
    whole = st.dictionaries(st.sampled_from(names), st.one_of(fields, fields, fields, VALUES))
    return st.one_of(whole, whole, whole, VALUES)


PLANS = st.fixed_dictionaries(
    {},
    optional={
        "tenants": things(
            ["acme", "child", "new"],
            tier=st.sampled_from(["gold", "pro", "missing", None]),
            parent=st.sampled_from(["acme", "child", "new", "missing", "", 4]),
            suspended=VALUES,
            quotas=QUOTAS,
        ),
        "tiers": things(["anonymous", "pro", "free", "enterprise", "new"], priority=VALUES, quotas=QUOTAS),
        "dependencies": things(
            ["openai", "new"],
            kind=st.sampled_from(["llm", "database", "missing"]),
            runbook=VALUES,
            breaker=st.one_of(VALUES, BREAKER),
            protection=st.one_of(VALUES, PROTECTION),
            vendor_limits=QUOTAS,
        ),
        "models": things(
            ["gpt-5.2", "new"],
            pool=st.sampled_from(["openai", "missing", "", 4]),
            aliases=st.one_of(VALUES, st.lists(st.sampled_from(["a", "b", "gpt-5.2", ""]), max_size=3)),
            prices=st.one_of(
                VALUES,
                st.dictionaries(
                    st.sampled_from(["2025-12-01", "2026-01-01T10:00Z", "2099-01-01", "2098-01-01", "soon"]),
                    st.one_of(VALUES, st.dictionaries(st.sampled_from(PRICES), VALUES)),
                ),
            ),
        ),
        "templates": st.dictionaries(st.sampled_from(["shared", "other"]), LIMITS),
        "subject_limits": st.one_of(VALUES, QUOTAS),
        "protection": st.one_of(VALUES, PROTECTION),
        "default_tier": VALUES,
        "tuning": VALUES,
    },
)


@pytest.fixture
def present(production: str, ada: Any) -> State:
    edits.create_tier(environment=production, tier="gold", title="Gold", priority=3, actor=BOB, **WHY)
    edits.create_tenant(environment=production, tenant="child", tier="gold", parent="acme", actor=BOB, **WHY)
    return read_state(production, tenants=["acme", "child"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=PLANS, prune=st.booleans())
def test_a_plan_is_resolved_or_refused(present: State, document: dict[str, Any], prune: bool) -> None:
    found = []
    try:
        resolve("production", plan_from_document(document), dict(present), prune=prune)
    except PlanErrors as refused:
        found = refused.found
    assert all(error.where and error.message for error in found)


@pytest.mark.parametrize("tenant", [{}, {"tier": "gold"}, {"tier": "missing"}])
def test_a_new_tenant_without_a_valid_tier_is_named_also_when_a_tier_is_removed(
    present: State, tenant: dict[str, Any]
) -> None:
    kept: dict[str, Any] = {name: {} for kind, name in present if kind == "tier" and name != "gold"}
    plan = plan_from_document({"tiers": kept, "tenants": {"new": tenant}})
    with pytest.raises(PlanErrors) as refused:
        resolve("production", plan, dict(present), prune=True)
    assert "tenants.new.tier" in [error.where for error in refused.value.found]
