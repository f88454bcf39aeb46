"""Names and comments of the code use the words that pages use.

docs/ARCHITECTURE.md has the list of words. The agent is clean. In the other packages the numbers may only
fall: lower them here when you rename something.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Words that no file, class or function has in its name, and what to write.
WRONG = {
    "gate": "breaker",
    "gates": "breakers",
    "beat": "heartbeat",
    "beats": "heartbeats",
    "hear": "record",
    "hears": "record",
    "heard": "recorded",
    "tell": "answer, or the name of what is sent",
    "tells": "answers",
    "told": "answered",
    "said": "text, label or result",
    "says": "the noun",
    "meet": "load",
    "met": "loaded",
    "nobody": "no_ and the noun",
    "somebody": "the noun",
    "whoever": "the noun",
    "anew": "again, or re-",
    "heed": "apply",
    "thing": "entity",
    "things": "entities",
    "happenings": "changes",
}
#: Names on the wire and in the OpenAPI document, and recorded names of keys.
ALLOWED = {"offline_told", "make_anew", "RevertThing", "beat"}
#: A comment with such a first word has no subject.
NO_SUBJECT = re.compile(r"(?:Of|What|For|Those|The same|As|Which|Who|Whose|Whoever|Than)\b")

#: Wrong names, bounds that begin with MOST or LEAST, and comments without a subject.
MAX_FINDINGS = {
    "agents": (0, 0, 0),
    "controlplane": (0, 0, 16),
    "dashboard": (0, 0, 0),
}


def sources(package: str) -> list[Path]:
    files = subprocess.check_output(["git", "ls-files", f"{package}/*.py"], cwd=ROOT, text=True)
    return [ROOT / file for file in files.split() if "/migrations/" not in file and (ROOT / file).exists()]


def wrong_parts(name: str) -> list[str]:
    return [part for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name) if part.lower() in WRONG]


def wrong_names(stem: str, tree: ast.AST) -> Iterator[str]:
    """Names of the file, its classes and its functions with a word that the product does not use."""
    defined = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for name in (stem, *defined):
        if name not in ALLOWED:
            yield from (f"{name}: {WRONG[part.lower()]}" for part in wrong_parts(name))


def wrong_bounds(source: str) -> list[str]:
    """Constants whose name begins with MOST or LEAST instead of MAX or MIN."""
    return re.findall(r"^_?(?:MOST|LEAST)\b\w*|^_?(?:MOST|LEAST)_\w+", source, re.MULTILINE)


def comments(source: str) -> Iterator[str]:
    """The first line of each comment."""
    above = -1
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        row = token.start[0]
        alone = lines[row - 1].lstrip().startswith("#")
        if not (alone and above == row - 1):
            yield token.string.lstrip("#: ")
        above = row if alone else -1


def docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def without_subject(texts: Iterable[str]) -> list[str]:
    return [text for text in texts if NO_SUBJECT.match(text)]


def findings(package: str) -> tuple[list[str], list[str], list[str]]:
    names: list[str] = []
    bounds: list[str] = []
    texts: list[str] = []
    for path in sources(package):
        source = path.read_text()
        tree = ast.parse(source)
        names += (f"{path.name}: {name}" for name in wrong_names(path.stem, tree))
        bounds += (f"{path.name}: {name}" for name in wrong_bounds(source))
        texts += (
            f"{path.name}: {text[:80]}" for text in without_subject((*comments(source), *docstrings(tree)))
        )
    return names, bounds, texts


@pytest.mark.parametrize("package", MAX_FINDINGS)
def test_names_and_comments_of_a_package_use_the_words_of_the_product(package: str) -> None:
    for found, at_most in zip(findings(package), MAX_FINDINGS[package], strict=True):
        assert len(found) <= at_most, "\n".join(found)


def test_comments_of_scripts_in_redis_have_a_subject() -> None:
    for path in (ROOT / "agents").rglob("*.lua"):
        above = ""
        for line in path.read_text().splitlines():
            text = line.lstrip()
            if text.startswith("-- ") and not above.startswith("--"):
                assert not NO_SUBJECT.match(text[3:]), f"{path.name}: {text}"
            above = text


def test_tests_have_no_codes_of_tickets() -> None:
    """A name such as ``test_m4_...`` or a docstring with "issue 12" means nothing to a later reader."""
    code = re.compile(r"def test_(?!p\d\d_)[a-z]\d{1,2}_\w+|\(issue \d+[^)]*\)|(?:\"\"\"|# )[A-Z]\d{1,2}: .*")
    found = [f"{path.name}: {text}" for path in sources("tests") for text in code.findall(path.read_text())]
    assert found == []


def test_wrong_names_are_found() -> None:
    source = "class ToldEverything:\n    def hear_rival(self): pass\nasync def gate(): pass\n"
    found = [name.partition(":")[0] for name in wrong_names("edit_thing", ast.parse(source))]
    assert sorted(found) == ["ToldEverything", "edit_thing", "gate", "hear_rival"]
    assert not [*wrong_names("gateway", ast.parse("def aggregate_metrics(): pass"))]


def test_bounds_and_comments_without_a_subject_are_found() -> None:
    assert wrong_bounds("MOST_X = 1\n_LEAST_Y: int = 2\nMOST = 3\nMOSTLY = 4\n") == [
        "MOST_X",
        "_LEAST_Y",
        "MOST",
    ]
    source = "#: Of this probe.\nx = 1  # What follows.\n# The number\n# of calls\n"
    assert without_subject(comments(source)) == ["Of this probe.", "What follows."]
    assert without_subject(docstrings(ast.parse('"""The same for threads."""\ndef f(): "Wait."\n')))
