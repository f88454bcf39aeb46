"""Prints how large the product is: ``python tools/count_code.py [TREE]``, a checkout or an unpacked archive.

Code is what is left without blank lines, comments and docstrings, also in the length of a function. The
complexity of a function is the number of its branches and boolean operators, plus 1. Migrations, demo and
benches are counted apart.
"""

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAX_LINES, MAX_PARAMETERS = 40, 8
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
}
_NO_CODE |= {tokenize.ENDMARKER}
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    name: str
    lines: int
    parameters: int
    complexity: int


@dataclass
class Totals:
    files: int = 0
    lines: int = 0
    code: int = 0
    docstring: int = 0
    comment: int = 0
    functions: list[Function] = field(default_factory=list)


def group_of(path: Path) -> str | None:
    """The row of the table to which a file belongs; ``None`` for one that is not counted."""
    parts = path.parts
    if "migrations" in parts:
        return "migrations"
    if parts[:2] in (("controlplane", "demo"), ("tests", "bench"), ("tests", "experiments")):
        return "demo and benches"
    if parts[:2] == ("agents", "fuseboard"):
        return "agents/fuseboard"
    if parts[0] == "tools" and len(parts) > 2:
        return "demo and benches"
    if parts[0] in ("controlplane", "dashboard", "tests"):
        return parts[0]
    return None


PRODUCT = ("agents/fuseboard", "controlplane", "dashboard")


def main(tree: Path) -> None:
    totals: dict[str, Totals] = {}
    rooms: Counter[str] = Counter()
    for path in sorted(tree.rglob("*.py")):
        relative = path.relative_to(tree)
        if any(part.startswith(".") for part in relative.parts) or (group := group_of(relative)) is None:
            continue
        count(path, relative, totals.setdefault(group, Totals()))
        if group in PRODUCT:
            rooms[str(relative.parent)] += 1
    product = [totals[name] for name in PRODUCT]
    totals["product"] = Totals(
        *(
            sum(getattr(one, name) for one in product)
            for name in ("files", "lines", "code", "docstring", "comment")
        ),
        functions=[function for one in product for function in one.functions],
    )
    head = f"{'':18} {'files':>6} {'lines':>7} {'code':>7} {'doc %':>6} {'# %':>5} {'functions':>9}"
    say(f"{head}  lines p50/p90/max  complexity p90/max")
    for name in (*PRODUCT, "product", "demo and benches", "migrations", "tests"):
        if name in totals:
            say(row(name, totals[name]))
    functions = totals["product"].functions
    say(over(MAX_LINES, "lines", functions, lambda one: one.lines))
    say(over(MAX_PARAMETERS, "parameters", functions, lambda one: one.parameters))
    say("largest rooms: " + ", ".join(f"{room} {files}" for room, files in rooms.most_common(6)))


def row(name: str, one: Totals) -> str:
    text = f"{name:18} {one.files:6} {one.lines:7} {one.code:7} {100 * one.docstring / one.lines:6.1f}"
    text += f" {100 * one.comment / one.lines:5.1f} {len(one.functions):9}"
    if not one.functions:
        return text
    lines = sorted(function.lines for function in one.functions)
    complexity = sorted(function.complexity for function in one.functions)
    return (
        f"{text}  {statistics.median(lines):g} / {lines[len(lines) * 9 // 10]} / {lines[-1]}"
        f"  {complexity[len(complexity) * 9 // 10]} / {complexity[-1]}"
    )


def over(most: int, unit: str, functions: list[Function], size: Callable[[Function], int]) -> str:
    found = sorted((one for one in functions if size(one) > most), key=lambda one: -size(one))
    first = ", ".join(f"{one.name} {size(one)}" for one in found[:5])
    return f"functions over {most} {unit}: {len(found)}; most: {first}"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def count(path: Path, relative: Path, totals: Totals) -> None:
    text = path.read_text()
    lines = text.splitlines()
    tree = ast.parse(text)
    code: set[int] = set()
    comments = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#"):
            comments += 1
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    docstrings = {
        line for node in docstrings_of(tree) for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    totals.files += 1
    totals.lines += len(lines)
    totals.code += len(code - docstrings)
    totals.docstring += len(docstrings)
    totals.comment += comments
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            totals.functions.append(function_of(node, relative, code - docstrings))


def docstrings_of(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | _Function)
            and ast.get_docstring(node, clean=False) is not None
        ):
            yield node.body[0]


def function_of(node: _Function, path: Path, code: set[int]) -> Function:
    every = node.args
    lines = sum(line in code for line in range(node.lineno, (node.end_lineno or 0) + 1))
    parameters = [
        *every.posonlyargs,
        *every.args,
        *every.kwonlyargs,
        *filter(None, (every.vararg, every.kwarg)),
    ]
    complexity = 1
    for part in ast.walk(node):
        if isinstance(part, _BRANCHES):
            complexity += 1
        elif isinstance(part, ast.BoolOp):
            complexity += len(part.values) - 1
        elif isinstance(part, ast.comprehension):
            complexity += 1 + len(part.ifs)
    named = [one for one in parameters if one.arg not in ("self", "cls")]
    return Function(f"{path}:{node.name}", lines, len(named), complexity)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
