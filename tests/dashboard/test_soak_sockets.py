"""1,000 open pages for half an hour: the web process must not grow. ``make soak``."""

import re
import subprocess
import sys

import pytest

from controlplane.installation import FOLDER as PROJECT

HOLD_S = 1800


@pytest.mark.soak
@pytest.mark.timeout(HOLD_S + 600)
def test_memory_of_the_web_process_stays_flat_with_a_thousand_open_pages():
    command = [sys.executable, "tools/bench/dashboard_sockets.py", str(HOLD_S)]
    run = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(run.stdout)
    assert run.returncode == 0, run.stdout
    assert re.search(r"dashboard_sockets_memory_leaked 0 ", run.stdout), run.stdout
