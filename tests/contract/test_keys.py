"""Keys are an agreement between releases: these texts may be added to, never changed."""

import inspect
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.contract import keys
from fuseboard.contract.descriptors import Match, Verdict, counted_key
from fuseboard.contract.words import is_slug, is_subject

KEYS = {
    keys.config_head("production"): "fb1:production:{cfg}:head",
    keys.tenant_bucket("production", 7): "fb1:production:{cfg}:tenants:7",
    keys.own_bucket("production", 7): "fb1:production:{cfg}:own:7",
    keys.config_channel("production"): "fb1:production:config",
    keys.ramp("production"): "fb1:production:ramp",
    keys.incarnation("production"): "fb1:production:incarnation",
    keys.breaker_channel("production"): "fb1:production:breakers",
    keys.backlog_channel("production"): "fb1:production:backlog",
    keys.budget_channel("production"): "fb1:production:budgets",
    keys.backlog("production", "openai", "ready"): "fb1:production:{d:openai}:backlog:ready",
    keys.emergency("production"): "fb1:production:{cfg}:emergency",
    keys.override("production", "openai"): "fb1:production:{d:openai}:override",
    keys.breaker("production", "openai"): "fb1:production:{d:openai}:breaker",
    keys.cooldown("production", "openai"): "fb1:production:{d:openai}:cooldown",
    keys.cooldown_claim("production", "openai"): "fb1:production:{d:openai}:cooldown_claim",
    keys.outcomes("production", "openai"): "fb1:production:{d:openai}:outcomes",
    keys.evidence("production", "openai"): "fb1:production:{d:openai}:evidence",
    keys.transitions("production", "openai"): "fb1:production:{d:openai}:transitions",
    keys.learned("production", "openai", "per-day"): "fb1:production:{d:openai}:learned:per-day",
    keys.vendor_limit("production", "openai", "per-day"): "fb1:production:{d:openai}:limit:per-day",
    keys.dependency_quota(
        "production", "openai", "acme", "tokens"
    ): "fb1:production:{d:openai}:quota:tokens:8c3723ac2be0a966c541",
    keys.subject_limit(
        "production", "ip=203.0.113.9", "logins"
    ): "fb1:production:{i:22ebae8d643d5f043726}:limit:logins",
    keys.own_limit("production", "k", "slow"): "fb1:production:{i:56e18c1e49325d169ecc}:own:slow",
    keys.service_limit("production", "flood"): "fb1:production:{i:2131b2bb0757e5fb4180}:limit:flood",
    keys.lock("production", "report"): "fb1:production:{i:d207e21822af2f3f83f3}:lock",
    keys.idempotency(
        "production", "acme", "POST", "/orders", "order-1"
    ): "fb1:production:{i:ae2faddccce5d9c8cd33}:idempotency",
    keys.offline_totals("fb1:production:{d:openai}:limit:a}b"): "fb1:production:{d:openai}:offline",
    keys.offline_told("fb1:production:{t:8c37}:quota:requests:ab12"): "fb1:production:{t:8c37}:told",
    keys.tenant_quota(
        "production", "acme", "requests"
    ): "fb1:production:{t:8c3723ac2be0a966c541}:quota:requests",
    keys.member_quota(
        "production", "acme", "ann", "requests"
    ): "fb1:production:{t:8c3723ac2be0a966c541}:of:b7945eee83b3a02cb28c:quota:requests",
    keys.dependency_budget("production", "openai", "daily"): "fb1:production:{d:openai}:budget:daily",
    keys.tenant_budget("production", "acme", "daily"): "fb1:production:{t:8c3723ac2be0a966c541}:budget:daily",
    keys.member_budget(
        "production", "acme", "ann", "daily"
    ): "fb1:production:{t:8c3723ac2be0a966c541}:of:b7945eee83b3a02cb28c:budget:daily",
    keys.account_budget("production", "main", "daily"): "fb1:production:{a:main}:budget:daily",
    keys.budget_mark("fb1:production:{a:main}:budget:daily"): "fb1:production:{a:main}:budget:daily:mark",
    keys.account_stop("production", "main"): "fb1:production:{a:main}:stop",
}


#: Made of the key of a limit or of a budget.
OFFLINE = {"offline_totals", "offline_told", "budget_mark"}


@pytest.mark.parametrize(("key", "text"), KEYS.items())
def test_no_key_has_changed(key, text):
    assert key == text


def test_every_function_that_makes_a_key_is_pinned():
    made = {
        name
        for name, function in inspect.getmembers(keys, inspect.isfunction)
        if "environment" in inspect.signature(function).parameters or name in OFFLINE
    }
    assert len(made) == len(KEYS)


def tag(key):
    return re.search(r"\{(.+?)\}", key)[1]


def test_all_keys_of_one_script_share_their_tag():
    def of(*made):
        return {tag(key) for key in made}

    assert of(
        keys.config_head("e"), *(keys.tenant_bucket("e", n) for n in range(5)), keys.own_bucket("e", 1)
    ) == {"cfg"}
    parts = (keys.override, keys.breaker, keys.outcomes, keys.evidence, keys.transitions)
    limit = (keys.vendor_limit("e", "llm", "x"), keys.learned("e", "llm", "x"))
    assert of(*(key("e", "llm") for key in parts), *limit) == {"d:llm"}
    assert len(of(keys.tenant_quota("e", "t", "a"), keys.tenant_quota("e", "t", "b"))) == 1


@given(st.text(min_size=1, max_size=200))
def test_nothing_in_a_tenants_id_can_steer_a_slot(tenant):
    if not is_subject(tenant):
        return
    assert re.fullmatch(r"fb1:e:\{t:[0-9a-f]{20}\}:quota:q", keys.tenant_quota("e", tenant, "q"))


def test_tenants_are_found_in_the_bucket_they_were_put_in():
    assert [keys.tenant_bucket_number(tenant) for tenant in ("acme", "acme ünd sons")] == [574, 273]
    assert all(0 <= keys.tenant_bucket_number(str(n)) < keys.TENANT_BUCKETS for n in range(5_000))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("a", True),
        ("eu-west_1.a", True),
        ("a" * 64, True),
        ("a" * 65, False),
        ("", False),
        ("-a", False),
        ("a-", False),
        ("a b", False),
        ("a\n", False),
        ("ä", False),
        ("{d}", False),
    ],
)
def test_slugs(text, fits):
    assert is_slug(text) is fits


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("acme ünd sons", True),
        ("x" * 200, True),
        ("x" * 201, False),
        ("", False),
        ("a\x00", False),
        ("a\n", False),
    ],
)
def test_subjects(text, fits):
    assert is_subject(text) is fits


def test_descriptors_with_the_same_words_have_one_counter_for_each_domain():
    def key(domain, *counted):
        return counted_key(domain, Match(verdict=Verdict.LIMIT, counted=counted))

    assert key("edge", "a", "b") == "4ec1c40ced59cc65b134"
    made = {key("edge", "a", "b"), key("edge", "ab", ""), key("edgea", "b"), key("edge", "a", "b", "", "")}
    assert len(made) == 4
    assert len(key("edge", "k" * 500, "v" * 100_000)) == 20
