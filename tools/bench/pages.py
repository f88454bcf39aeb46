"""The processor time of a web process for each page of the dashboard, at 200 breakers and 1,000 pods.

The middle of five requests after a first one. Run it as ``python tools/bench/pages.py``.
"""

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from control_plane.stand import Bars, control_plane, within
from dashboard_tick import PODS, add_dependencies, write

REQUESTS = 5
#: For the whole script; an idle machine needs a tenth of it.
MAX_S = 600


def addresses() -> dict[str, str]:
    """The pages of ``make screenshots`` whose address is known without a click."""
    from screenshots import PAGES

    # The demo's dependency is not in this fleet.
    known = {"/breakers/payments-api": "/breakers/dependency-007"}
    plain = {name: path for name, path in PAGES.items() if isinstance(path, str)}
    return {
        name: known.get(path, path)
        for name, path in plain.items()
        if "payments-api" not in known.get(path, path)
    }


def main() -> int:
    within(MAX_S)
    bars = Bars()
    with control_plane():
        from django.test import Client

        from controlplane.accounts.models import User

        add_dependencies()
        write(range(PODS), 0)
        client = Client(headers={"host": "localhost"})
        client.force_login(User.objects.create_superuser("ada", password="for the bench only"))
        for name, path in addresses().items():
            cpu = []
            answer = client.get(path, secure=True)
            if answer.status_code == 400 or answer.status_code >= 500:
                raise AssertionError(f"{path}: {answer.status_code}")
            if answer.status_code != 200:
                continue  # it asks for the password again, or for something that is not in this fleet
            for _ in range(REQUESTS):
                began = time.process_time()
                client.get(path, secure=True)
                cpu.append(time.process_time() - began)
            bars.figure(f"page_{name}_cpu", statistics.median(cpu) * 1000, "ms")
    return bars.status


if __name__ == "__main__":
    sys.exit(main())
