"""The security review names a correction and a test for each finding, and evidence for each chapter."""

import re
from pathlib import Path

from tests.faults.rows import ROWS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security_review.md").read_text()
CELLS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ")
]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_each_finding_has_a_correction_and_a_test():
    findings = [row for row in CELLS if re.match(r"\d+\. ", row[0])]
    numbers = {int(row[0].split(".")[0]) for row in findings}
    assert numbers == set(range(1, max(numbers) + 1))
    assert len(numbers) > 12
    for _, severity, correction, tested_by in findings:
        assert severity
        assert correction
        assert TEST.search(tested_by)


def test_each_chapter_of_the_standard_has_evidence_or_a_gap():
    chapters = [row for row in CELLS if re.match(r"V\d+ ", row[0])]
    assert [row[0].split(" ")[0] for row in chapters] == [f"V{number}" for number in range(1, 18)]
    for chapter, evidence, gap in chapters[:-1]:
        assert gap, chapter
        assert TEST.search(evidence), chapter


def test_every_row_of_the_fault_matrix_that_is_named_exists():
    named = set(re.findall(r"row \*([a-z-]+)\*", PAGE))
    assert named
    assert named <= {row.name for row in ROWS}
