"""Files of envoyproxy/ratelimit, as Fuseboard reads them: limits, notes, and problems with their lines."""

from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.contract.descriptor_file import MAX_FILE, MAX_PROBLEMS, DescriptorFile, Remark, read_file
from fuseboard.contract.descriptor_words import limit_text
from fuseboard.contract.descriptors import (
    MAX_BYTES,
    MAX_LEVELS,
    MAX_RULES,
    Charge,
    DescriptorDomain,
    DescriptorRule,
    DescriptorRules,
    Means,
    Verdict,
    problems_of,
)
from fuseboard.contract.words import Algorithm, Period

EDGE = """\
    domain: edge
    descriptors:
      - key: tenant
        means: tenant
        descriptors:
          - key: remote_address
            means: ip
      - key: destination_cluster
        value: outbound|443||api.example.com
        dependency: payments-api
      - key: generic_key
        value: slow-path
        rate_limit: {unit: Minute, requests_per_unit: 10, name: slow}
        shadow_mode: true
        accepts_override: 50
      - key: tokens_of
        means: tenant
        measure: tokens
        charge: after
    """


#: A file, the line of its problem, and what the problem says.
WRONG = [
    ("", 0, "empty"),
    ("descriptors: []", 1, "name of the domain"),
    ("domain: 'two words'", 1, "'two words' cannot be the name of a domain"),
    ("domain: edge/../mesh", 1, "also beside a slash"),
    ("domain: edge/", 1, "also beside a slash"),
    ("domain: edge\nheaders: draft", 2, "This must be one of off, on, legacy"),
    ("domain: edge\nheaders: 1", 2, "This must be one of off, on, legacy"),
    (f"domain: {'n' * 201}", 1, "Use 1 to 200 letters"),
    ("[1]", 1, "must be a mapping"),
    ("? [kind, apiVersion]\n: 1", 1, "no word ''"),
    ("domain: d\ndescriptors: {}", 2, "must be a list"),
    ("domain: d\ndescriptors:\n- 5", 3, "must be a mapping"),
    ("domain: d\ndescriptors:\n- key: k\n  keyy: v", 4, "no word 'keyy'"),
    ("domain: d\ndescriptors:\n- key: k\n  quota_mode: true", 4, "use shadow_mode"),
    ("domain: d\ndescriptors:\n- key: k\n  quota_mode: maybe", 4, "true or false"),
    ("domain: d\ndescriptors:\n- value: v", 3, "Enter the key"),
    ("domain: d\ndescriptors:\n- key: k*", 3, "write the pattern as the value"),
    ("domain: d\ndescriptors:\n- key: k\n- key: k", 4, "appears twice"),
    ("domain: d\ndescriptors:\n- key: k\n  key: l", 4, "key appears twice"),
    ("domain: d\ndescriptors:\n- key: k\n  share_threshold: true", 3, "needs a value with *"),
    ("domain: d\ndescriptors:\n- key: k\n  share_threshold: 1", 4, "true or false"),
    ("domain: d\ndescriptors:\n- key: k\n  rate_limit: {}", 4, "no unit ''"),
    ("domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: year}", 4, "by the year"),
    ("domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, unlimited: true}", 4, "has no unit"),
    (
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: -1}",
        4,
        "whole number",
    ),
    (
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: second, requests_per_unit: 4294967295}",
        4,
        "for more, write unlimited: true",
    ),
    (
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 1.5}",
        4,
        "whole number",
    ),
    # 8, in YAML
    (
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 010}",
        4,
        "whole number",
    ),
    ('domain: d\ndescriptors:\n- key: "k\\e[31m"', 3, "Keys, values and names cannot contain control"),
    (
        'domain: d\ndescriptors:\n- key: k\n  value: "a\\nb"',
        3,
        "Keys, values and names cannot contain control",
    ),
    ('domain: "d\\e[31m"', 1, "x1b[31m' cannot be the name of a domain"),
    (
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: minute, requests_per_unit: 1000000000}",
        3,
        "too long for this many calls",
    ),
    (
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, name: n, replaces: [{name: n}]}",
        3,
        "cannot replace itself",
    ),
    (
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, replaces: [{}]}",
        3,
        "name of each rule",
    ),
    ("domain: d\ndescriptors:\n- key: k\n  means: client", 4, "one of tenant, user"),
    ("domain: d\ndescriptors:\n- key: k\n  means: tenant\n  dependency: d", 3, "one of rate_limit"),
    ("domain: d\ndescriptors:\n- key: k\n  dependency: a b", 3, "cannot be the name of a dependency"),
    (
        "domain: d\ndescriptors:\n- key: k\n  means: ip\n  measure: a b",
        3,
        "cannot be the name of a measure",
    ),
    ("domain: d\ndescriptors:\n- key: k\n  charge: after", 3, "need a rate_limit"),
    (
        "domain: d\ndescriptors:\n- key: k\n  means: tenant\n  accepts_override: 5",
        3,
        "accepts_override needs a rate_limit",
    ),
    (
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: minute}\n  accepts_override: 1000000000",
        3,
        "accepts_override.k.window_ms: too long",
    ),
    ("domain: d\ndescriptors: &a []", 2, "Anchors"),
    ("domain: !!str d", 1, "Tags"),
    ("domain: d\n---\ndomain: e", 2, "one document: split it here"),
    ("domain: d\ndescriptors: []\n---\n", 3, "or remove this ---"),
    ("domain: [\n", 2, "not valid YAML"),
    ("domain: \x00", 0, "not valid YAML"),
    ("#" * (MAX_FILE + 1), 0, "larger than 256 KiB"),
    ("[" * 100_000, 1, "nested too deeply"),
    (f"domain: {'d' * 501}", 1, "at most 500 characters"),
]


def read(text: str) -> DescriptorFile:
    return read_file(dedent(text))


def rule_of(limit: str) -> DescriptorFile:
    return read(f"{{domain: d, descriptors: [{{key: k, rate_limit: {limit}}}]}}")


def test_the_words_of_fuseboard_are_read() -> None:
    file = read(EDGE)
    assert file.problems == ()
    assert file.domain is not None
    tenant, cluster, slow, tokens = file.domain.rules
    assert (tenant.means, tenant.then[0].means) == (Means.TENANT, Means.IP)
    assert cluster.dependency == "payments-api"
    assert slow.limit is not None
    assert (slow.accepts_override, tokens.accepts_override) == (50, 0)
    assert (slow.limit.limit, slow.limit.burst, slow.limit.window_ms, slow.limit.shadow) == (
        10,
        10,
        60_000,
        True,
    )
    assert (tokens.means, tokens.measure, tokens.charge) == (Means.TENANT, "tokens", Charge.AFTER)


def test_the_words_of_entries_name_tenant_and_caller() -> None:
    file = read(EDGE)
    assert file.domain is not None
    rules = DescriptorRules([file.domain])
    both, call, alone, unknown = rules.match(
        "edge",
        [
            [("tenant", "acme"), ("remote_address", "192.0.2.1")],
            [("destination_cluster", "outbound|443||api.example.com")],
            [("remote_address", "192.0.2.1")],
            [("tenant", "acme"), ("remote_address", "192.0.2.1"), ("more", "entries")],
        ],
    )
    assert both.verdict is Verdict.REQUEST
    assert both.named == {Means.TENANT: "acme", Means.IP: "192.0.2.1"}
    assert call.verdict is Verdict.CALL
    assert alone.verdict is unknown.verdict is Verdict.UNMATCHED
    assert rules.match("other", [[("tenant", "acme")]])[0].verdict is Verdict.UNMATCHED


@pytest.mark.parametrize(
    ("keys", "name", "shown"),
    [
        (["tenant", "remote_address"], "", "tenant.remote_address"),
        (["a key/with (signs)"], "", "a-key-with-signs"),
        (["k" * 100, "ip"], "", "k" * 61 + ".ip"),
        (["("], "", "descriptor"),
        (["ip"], "per-address", "per-address"),
        (["ip"], "per address", "ip"),
    ],
)
def test_a_limit_without_a_name_has_the_keys_of_its_rule(keys: list[str], name: str, shown: str) -> None:
    rule: dict[str, Any] = {"rate_limit": {"unit": "hour", "requests_per_unit": 1, "name": name}}
    for key in reversed(keys):
        rule = {"descriptors": [{"key": key} | rule]}
    file = read(yaml.safe_dump({"domain": "edge"} | rule))
    assert file.domain is not None
    (found,) = file.domain.rules
    while found.then:
        (found,) = found.then
    assert found.limit is not None
    assert found.limit.name == shown


@pytest.mark.parametrize(
    ("unit", "algorithm", "period", "text"),
    [
        ("second", Algorithm.TOKEN_BUCKET, None, "5 per second, in a token bucket"),
        ("minute", Algorithm.TOKEN_BUCKET, None, "5 may pass at once"),
        ("hour", Algorithm.FIXED_WINDOW, Period.HOUR, "5 per hour, in calendar hours of UTC"),
        ("day", Algorithm.FIXED_WINDOW, Period.DAY, "5 per day, in calendar days of UTC"),
        ("week", Algorithm.FIXED_WINDOW, Period.WEEK, "calendar weeks"),
        ("month", Algorithm.FIXED_WINDOW, Period.MONTH, "calendar months"),
    ],
)
def test_a_unit_decides_the_algorithm(
    unit: str, algorithm: Algorithm, period: Period | None, text: str
) -> None:
    file = rule_of(f"{{unit: {unit}, requests_per_unit: 5}}")
    assert file.domain is not None, file.problems
    limit = file.domain.rules[0].limit
    assert limit is not None
    assert (limit.limit, limit.algorithm, limit.period) == (5, algorithm, period)
    assert text in limit_text(limit)
    assert bool(file.notes) == (unit in ("week", "month"))


def test_a_domain_may_have_slashes() -> None:
    file = read_file("domain: envoy-gateway/eg.1/http_2\ndescriptors: [{key: k, means: ip}]")
    assert file.domain is not None, file.problems
    assert file.domain.domain == "envoy-gateway/eg.1/http_2"


@pytest.mark.parametrize(
    ("word", "headers"),
    [("on", "on"), ("true", "on"), ("'on'", "on"), ("legacy", "legacy"), ("off", "off"), ("", "off")],
)
def test_a_domain_says_which_headers_answers_have(word: str, headers: str) -> None:
    file = read_file(f"domain: d\nheaders: {word}\ndescriptors: [{{key: k, means: ip}}]")
    assert file.domain is not None, file.problems
    assert file.domain.headers == headers


def test_a_limit_of_0_refuses_everything() -> None:
    file = rule_of("{unit: second, requests_per_unit: 0}")
    assert file.domain is not None
    assert file.domain.rules[0].limit is not None
    assert file.domain.rules[0].limit.limit == 0
    assert limit_text(file.domain.rules[0].limit) == "0 per second: every hit is above the limit"


@pytest.mark.parametrize("limit", ["{unit: day}", "{unit: day, requests_per_unit: }"])
def test_a_limit_without_a_number_has_a_note(limit: str) -> None:
    file = rule_of(limit)
    assert file.problems == ()
    assert [text for _, text in file.notes] == ["requests_per_unit is missing: the limit is 0."]


def test_an_unlimited_rule_may_leave_its_unit_empty() -> None:
    assert rule_of("{unlimited: true, unit: }").problems == ()


def test_words_of_metrics_are_listed_as_not_needed() -> None:
    file = read(
        """\
        domain: d
        descriptors:
          - key: k
            detailed_metric: true
            value_to_metric: true
            metadata: {any: [thing]}
        """
    )
    assert file.domain is not None
    assert [line for line, _ in file.notes] == [4, 5, 6]
    assert ["not needed" in text for _, text in file.notes] == [True, True, False]
    assert "not sent to Envoy" in file.notes[2].text


def test_a_file_of_envoy_gateway_is_read_as_it_is() -> None:
    file = read(
        """\
        name: eg-http
        domain: eg-http
        descriptors:
          - key: rule-0-match-0
            value: rule-0-match-0
            rate_limit:
              requests_per_unit: 5
              unit: SECOND
              unlimited: false
              name: ""
              replaces: []
            descriptors: []
            shadow_mode: false
            quota_mode: false
            detailed_metric: false
            value_to_metric: false
            share_threshold: false
            metadata: {}
        """
    )
    assert (file.problems, file.notes) == ((), ())
    assert file.domain is not None
    [rule] = file.domain.rules
    assert rule.limit is not None
    assert (rule.limit.limit, rule.limit.window_ms) == (5, 1_000)


def test_rules_that_envoyproxy_ratelimit_would_confuse_have_a_note() -> None:
    file = read(
        """\
        domain: d
        descriptors:
          - key: user
          - key: user_admin
            rate_limit: {unlimited: true}
        """
    )
    [(line, text)] = file.notes
    assert line == 4
    assert "for the key user with the value 'admin'" in text
    assert file.domain is not None
    assert DescriptorRules([file.domain]).match("d", [[("user", "admin")]])[0].verdict is Verdict.UNMATCHED


@pytest.mark.parametrize(
    ("rule", "other", "entry", "confused"),
    [
        ("key: user, value: admin_x", "key: user_admin", ("user_admin", "x"), "with the value 'x'"),
        ("key: user, value: 'admin_*'", "key: user_admin", ("user_admin", "x"), "with the value '*'"),
        ("key: user, value: '*'", "key: user_admin", ("user_admin", "x"), "for the key user_admin."),
        ("key: user, value: 'a*'", "key: user_admin", ("user_admin", "x"), "for the key user_admin."),
        ("key: user, value: admin", "key: user_admin, value: y", ("user_admin", "z"), "the key user_admin."),
        ("key: user, value: 'b*'", "key: user_admin", ("user_admin", "x"), ""),
        ("key: user, value: admin", "key: users", ("users", "x"), ""),
    ],
)
def test_a_rule_with_a_value_may_be_confused_with_another_key(
    rule: str, other: str, entry: tuple[str, str], confused: str
) -> None:
    file = read_file(f"domain: d\ndescriptors:\n- {{{rule}, rate_limit: {{unlimited: true}}}}\n- {{{other}}}")
    assert file.domain is not None, file.problems
    found = [text for line, text in file.notes if line == 3]
    assert len(found) == bool(confused)
    assert all(confused in text for text in found)
    assert DescriptorRules([file.domain]).match("d", [[entry]])[0].verdict is Verdict.UNMATCHED


@pytest.mark.parametrize(("text", "line", "problem"), WRONG, ids=[problem for _, _, problem in WRONG])
def test_a_wrong_file_is_refused_with_its_line(text: str, line: int, problem: str) -> None:
    file = read_file(text)
    assert file.domain is None
    assert any(problem in found and at == line for at, found in file.problems), file.problems


def test_a_whole_configmap_is_one_problem() -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: r}\ndata:\n  config.yaml: |\n    domain: d\n"
    [(line, problem)] = read_file(text).problems
    assert line == 1
    assert "the value of one key of its data, such as config.yaml" in problem


def test_all_problems_are_found_at_once() -> None:
    file = read_file(
        "domain: d\ndescriptors:\n- key: k\n  means: client\n- key: l\n  rate_limit: {unit: age}\n"
        "- key: m\n  share_threshold: true"
    )
    assert [line for line, _ in file.problems] == [4, 6, 7]


def test_a_word_that_cannot_be_read_is_one_problem() -> None:
    file = read_file(
        "domain: d\ndescriptors:\n- key: [k]\n  charge: after\n  rate_limit: {unit: age}\n  descriptors:\n"
        "  - value: v"
    )
    assert [line for line, _ in file.problems] == [3, 5, 7]
    assert [line for line, _ in read_file("domain: [d]").problems] == [1]


def test_more_rules_than_a_policy_takes_are_refused() -> None:
    many = DescriptorDomain(
        domain="d", rules=tuple(DescriptorRule(key="k", value=f"{number}") for number in range(MAX_RULES + 1))
    )
    [(place, text)] = problems_of(many)
    assert place == ()
    assert "1,001 rules" in text
    assert "means: tenant" in text
    large = DescriptorDomain(
        domain="d",
        rules=tuple(DescriptorRule(key="k", value=f"{number}" * 100) for number in range(200, 500)),
    )
    [(place, text)] = problems_of(large)
    assert f"{MAX_BYTES:,} are allowed" in text


@pytest.mark.parametrize("item", ["- x\n", "- {kex: a}\n", "- {key: a, key: a}\n", "- {key: a}\n"])
def test_reading_ends_after_the_first_problems(item: str) -> None:
    file = read_file("domain: d\ndescriptors:\n" + item * 2_000)
    assert file.domain is None
    assert len(file.problems) == MAX_PROBLEMS + 1
    assert len(file.lines) <= 2_001
    last = max(line for line, _ in file.problems)
    assert Remark(last, "Reading ended after 100 problems. Correct them, then check the file again.") in (
        file.problems
    )


@pytest.mark.parametrize("item", ["a,", "[],", "{a: 1},", "{key: a},"])
def test_no_tree_is_built_of_a_file_with_too_many_parts(monkeypatch: Any, item: str) -> None:
    read = 0

    def parts(*given: Any, **named: Any) -> Iterator[Any]:
        nonlocal read
        for event in parse(*given, **named):
            read += 1
            yield event

    parse = yaml.parse
    monkeypatch.setattr(yaml, "parse", parts)
    monkeypatch.setattr(yaml, "compose", None)
    file = read_file(f"domain: d\ndescriptors: [{item * (MAX_FILE // len(item) - 20)}]")
    assert [text for _, text in file.problems] == [
        "The file has more than 50,000 keys and values: split the domain."
    ]
    assert read <= 50_002


def test_the_rules_of_a_full_domain_have_fewer_parts_than_a_file_may_have() -> None:
    """Also with every word, and words that are not needed."""
    words = "detailed_metric: true, value_to_metric: true, metadata: {owner: me, team: us}"
    rate = "{unit: minute, requests_per_unit: 9, name: n}"
    limited = f"- {{key: k%d, rate_limit: {rate}, shadow_mode: true, measure: calls, {words}}}\n"
    plain = f"- {{key: k%d, means: ip, measure: calls, charge: before, {words}}}\n"
    rules = [(limited if number < 100 else plain) % number for number in range(MAX_RULES)]
    text = f"domain: d\ndescriptors:\n{''.join(rules)}"
    assert len(text) < MAX_FILE
    assert read_file(text).problems == ()


def test_rules_have_a_greatest_depth() -> None:
    rules: tuple[DescriptorRule, ...] = ()
    for _ in range(MAX_LEVELS):
        rules = (DescriptorRule(key="k", then=rules),)
    assert list(problems_of(DescriptorDomain(domain="d", rules=rules))) == []
    deeper = DescriptorDomain(domain="d", rules=(DescriptorRule(key="k", then=rules),))
    assert len(list(problems_of(deeper))) == 1


def test_problems_do_not_repeat_control_characters() -> None:
    file = read_file('domain: d\ndescriptors:\n- key: "k\\e"\n- key: "k\\e"')
    assert any("appears twice" in text for _, text in file.problems)
    assert all(text.isprintable() for _, text in file.problems)


#: Parts of files, in any order.
PARTS = ["domain", "descriptors", "key", "rate_limit", "unit", "day", "replaces", "d", "", "- ", "  ", "\n"]
PARTS += [
    ": ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "5",
    "true",
    "*",
    "&a ",
    "*a",
    "!t ",
    "<<",
    "---\n",
    "'",
    "\x00",
    "é",
]


@given(st.text(max_size=200) | st.lists(st.sampled_from(PARTS), max_size=60).map("".join))
def test_any_text_is_read_or_has_problems(text: str) -> None:
    file = read_file(text)
    assert (file.domain is None) == bool(file.problems)
    assert all(0 <= line <= text.count("\n") + text.count("\r") + 2 for line, _ in file.problems)
