"""``docs/experiments.md``, and a chart of each experiment beside it."""

from collections.abc import Sequence
from pathlib import Path

from tools.experiments.result import Result

DOCS = Path(__file__).resolve().parents[2] / "docs"

INTRODUCTION = """# Experiments

What the protection of a pod does, and the same traffic without it. `make experiments` plays them again and
writes this page. The simulations run the agent's own code in virtual time, so that they give the same
figures on every machine; the others use real processes.
"""


def write(results: Sequence[Result], docs: Path = DOCS) -> None:
    folder = docs / "experiments"
    folder.mkdir(exist_ok=True)
    for result in results:
        for number, chart in enumerate(result.charts, 1):
            (folder / f"{result.key.lower()}-{number}.svg").write_text(chart.svg())
    (docs / "experiments.md").write_text(INTRODUCTION + "".join(map(_section, results)))


def _section(result: Result) -> str:
    parts = [f"\n## {result.key}: {result.title}\n\n"]
    parts.append(f"**Traffic.** {result.traffic}\n\n**Expected.** {result.expected}\n\n")
    if result.table:
        heading, *rows = result.table
        parts.append(_row(heading) + _row(tuple("---" for _ in heading)) + "".join(map(_row, rows)) + "\n")
    for statement, holds in result.checks:
        parts.append(f"- {'Holds' if holds else '**Does not hold**'}: {statement}.\n")
    parts.append("\n")
    for number, chart in enumerate(result.charts, 1):
        parts.append(f"![{chart.title}](experiments/{result.key.lower()}-{number}.svg)\n")
    return "".join(parts)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |\n"
