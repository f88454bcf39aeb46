"""The checks of ``make lint`` over the whole tree, each with an example that it must find."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _load(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


tree = _load("tools/check_tree.py")
# Assembled here, so that the checks do not find this file.
HOME, WORK, PACKAGES = "/ho" + "me/ann", "/wo" + "rk/main", "py" + "pi.org"


@pytest.mark.parametrize(
    ("check", "path", "text"),
    [
        (tree.machine_paths, "a.md", f"see {HOME}/notes"),
        (tree.machine_paths, "a.toml", f'cache = "{WORK}"'),
        (tree.registry_hosts, "a.txt", f"https://{PACKAGES}/simple"),
        (tree.registry_hosts, "requirements/dev.txt", "--index-" + "url https://packages.example"),
        (tree.python_length, "a.py", "x = 1\n" * (tree.MAX_PYTHON_LINES + 1)),
        (tree.python_length, "tests/a.py", "x = 1\n" * (tree.MAX_TEST_LINES + 1)),
        (tree.line_width, "dashboard/templates/a.html", "<p>" + "a" * tree.MAX_TEMPLATE_COLUMNS),
        (tree.line_width, "dashboard/static/dashboard/a.css", "/*" + "a" * tree.MAX_STATIC_COLUMNS),
        (tree.line_width, "dashboard/static/dashboard/a.js", "//" + "a" * tree.MAX_STATIC_COLUMNS),
        (tree.lua_header, "a.lua", "-- KEYS\n-- ARGV\n-- Returns\nreturn 1\n"),
        (tree.lua_header, "a.lua", "#!lua\n-- KEYS and ARGV\nreturn 1 -- Returns\n"),
        (tree.markdown_links, "README.md", "see [this](docs/no-such-page.md)"),
        (tree.markdown_links, "README.md", '<img src="docs/no-such-picture.svg">'),
        (tree.markdown_links, "tools/changes/a.added.md", "See [this](../../README.md).\n"),
        (tree.change, "tools/changes/limits.new.md", "Limits have names.\n"),
        (tree.change, "tools/changes/Limits.added.md", "Limits have names.\n"),
        (tree.change, "tools/changes/limits.added.md", "- Limits have names.\n"),
        (tree.change, "tools/changes/limits.added.md", "# Limits\n\nThey have names.\n"),
        (tree.change, "tools/changes/limits.added.md", "Limits have names"),
        (tree.change, "tools/changes/limits.added.md", f"{'a' * 161}.\n"),
    ],
)
def test_a_check_reports_bad_files(check, path, text):
    assert list(check(path, text))


@pytest.mark.parametrize(
    ("check", "path", "text"),
    [
        (tree.machine_paths, "a.yml", "tmpfs: [/run/fuseboard]  # or $HOME/notes, docs/work/plan"),
        (tree.registry_hosts, "a.md", "the registry.reset() of our metrics"),
        (tree.python_length, "app/migrations/0001.py", "x = 1\n" * 1000),
        (tree.line_width, "dashboard/templates/a.html", "a" * tree.MAX_TEMPLATE_COLUMNS + "\n"),
        (
            tree.change,
            "tools/changes/vendor-limits.added.md",
            "Limits have\n[names](docs/limits.md).\n",
        ),
        (tree.markdown_links, "tools/changes/a.added.md", "See [limits](docs/limits.md).\n"),
        (tree.change, "tools/changes/README.md", "# Changes\n"),
        (tree.line_width, "dashboard/static/vendor/a.js", "a" * 1000),
        (
            tree.lua_header,
            "a.lua",
            "#!lua\n-- KEYS 1\n--\n-- ARGV none\n-- Returns 1\nreturn 1\n",
        ),
        (
            tree.markdown_links,
            "docs/adr/README.md",
            "[up](../../README.md#top), [out](https://example.com), `[x](y)`",
        ),
    ],
)
def test_a_check_accepts_good_files(check, path, text):
    assert list(check(path, text)) == []


@pytest.mark.parametrize("check", tree.CHECKS, ids=lambda check: check.__name__)
def test_the_tree_passes(check):
    found = []
    for path in tree.tracked_files():
        try:
            text = (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue  # a picture or a font
        found += check(path, text)
    assert found == []


def test_modules_of_tests_that_pytest_imports_by_name_have_different_names():
    """``make soak`` collects every folder in one run. ``make test`` does not: it misses a name used twice."""
    names = Counter(
        path.name
        for path in map(ROOT.joinpath, tree.tracked_files())
        if path.is_relative_to(ROOT / "tests")
        and path.suffix == ".py"
        and not (path.parent / "__init__.py").exists()
    )
    assert [name for name, times in names.items() if times > 1 and name != "conftest.py"] == []
