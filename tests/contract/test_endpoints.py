"""An endpoint is a pattern of itself, and only ``*`` is special."""

import re

import pytest

from fuseboard.contract.endpoints import counted_endpoint, matcher, matches

NAMES = (
    "GET /^orders/(?P<pk>[0-9]+)/$",
    "GET /a[b]c",
    "GET /a?b",
    "POST /[!x]/{id}",
    "GET /a.b+c|d\\e",
    "GET /line\nbreak",
    "orders.create",
    "search documents",
    "GET /ä/😀",
    "HEAD /only",
    "OPTIONS /x",
    "PURGE /x",
)


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_an_endpoint_is_a_pattern_of_itself(name: str) -> None:
    assert matches(name, (name,))
    assert not matches(name + "x", (name,))
    assert not matches("x" + name, (name,))


def test_a_star_stands_for_any_text_at_any_place() -> None:
    for pattern in ("GET /orders/*", "GET *", "*", "* /orders/7", "*/7", "G*7", "GET /orders/7*", "**"):
        assert matches("GET /orders/7", (pattern,)), pattern
    for pattern in ("GET /orders/?", "GET /orders/[0-9]", "POST *", "/orders/7", "GET /orders", "GET"):
        assert not matches("GET /orders/7", (pattern,)), pattern


def test_head_is_counted_with_get_and_can_have_its_own_pattern() -> None:
    assert (
        counted_endpoint("HEAD /x") == counted_endpoint("head /x") == counted_endpoint("GET /x") == "GET /x"
    )
    assert matches("HEAD /x", ("GET /x",))
    assert matches("HEAD /x", ("HEAD /x",))
    assert not matches("GET /x", ("HEAD /x",))
    assert not matches("OPTIONS /x", ("GET /x",))
    assert not matches("HEAD /x", ("POST /x",))


def test_the_case_of_a_method_does_not_matter_and_that_of_a_path_does() -> None:
    assert counted_endpoint("get /X") == "GET /X"
    assert matches("get /x", ("GET /x",))
    assert matches("GET /x", ("get /x",))
    assert not matches("GET /X", ("GET /x",))
    assert counted_endpoint("search documents") == "search documents"


def test_the_first_of_several_patterns_that_matches_is_found() -> None:
    find = matcher(("POST /a*", "GET /(a)*", "GET /*"))
    assert [find(name) for name in ("POST /ab", "GET /(a)b", "HEAD /c", "PUT /a")] == [0, 1, 2, None]
    assert matcher(())("GET /") is None


def test_a_pattern_of_many_stars_ends_soon() -> None:
    assert not matches("GET /" + "a" * 1_990, ("GET /" + "*a" * 95 + "*b",))


def test_patterns_without_special_characters_mean_the_same_in_pods_of_earlier_releases() -> None:
    from fnmatch import fnmatchcase

    names = [*NAMES, "GET /v1/orders/{id}", "POST /v1/orders"]
    for pattern in (
        "GET /v1/*",
        "*",
        "* /v1/orders*",
        "POST /v1/orders",
        "GET /{id}",
        "*.create",
        "GET /a.b+c|d*",
    ):
        assert not re.search(r"[\[?]", pattern)
        for name in (name for name in names if not name.startswith("HEAD ")):
            assert matches(name, (pattern,)) == fnmatchcase(name, pattern), (name, pattern)
