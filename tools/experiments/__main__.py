"""``python -m tools.experiments [T1 T3 ...]``: play them, print what they found, and write the page.

With names, or with ``--print``, the page stays as it is.
"""

import logging
import sys
import time

from tools.experiments import page
from tools.experiments.catalogue import EVERY
from tools.experiments.result import Result


def main(arguments: list[str]) -> int:
    names = [name for name in arguments if name != "--print"]
    unknown = [name for name in names if name not in EVERY]
    if unknown:
        sys.stderr.write(f"No experiment {', '.join(unknown)}. Choose from: {', '.join(EVERY)}\n")
        return 2
    # Hundreds of decisions are logged by the parts; the result is what counts.
    logging.disable(logging.WARNING)
    results = []
    for name in names or list(EVERY):
        began = time.monotonic()
        results.append(result := EVERY[name]())
        _print(result, time.monotonic() - began)
    if not arguments:
        page.write(results)
    failed = [result.key for result in results if not result.holds]
    sys.stdout.write(f"{len(results) - len(failed)} of {len(results)} experiments hold")
    sys.stdout.write(f"; not: {', '.join(failed)}\n" if failed else "\n")
    return 1 if failed else 0


def _print(result: Result, took_s: float) -> None:
    sys.stdout.write(f"\n{result.key} {result.title} ({took_s:.1f} s)\n")
    for row in result.table:
        sys.stdout.write(f"   {' | '.join(row)}\n")
    for statement, holds in result.checks:
        sys.stdout.write(f"   {'holds' if holds else 'FAILS'}: {statement}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
