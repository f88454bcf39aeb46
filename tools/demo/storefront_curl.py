"""The program of ``storefront.mjs`` on a machine without Node: each question is one run of curl."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_SILENT = ["curl", "--silent", "--show-error", "--noproxy", "*"]


def _ask(path: str, content: Any) -> Any:
    token = Path(os.environ["SIDECAR_TOKEN_FILE"]).read_text().strip()
    headers = [
        *("--header", "content-type: application/json"),
        *("--header", f"authorization: Bearer {token}"),
    ]
    wait_s = str(int(os.environ["SIDECAR_TIMEOUT_MS"]) / 1000)
    sent = ["--max-time", wait_s, *headers, "--data", json.dumps(content), os.environ["SIDECAR_URL"] + path]
    return json.loads(_output(["--fail", *sent]))


def _output(arguments: list[str]) -> str:
    command = [*_SILENT, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - our command
    return done.stdout


def _call() -> dict[str, Any]:
    asked = time.time() * 1000
    decision = _ask("/v1/calls", {"dependency": os.environ["DEPENDENCY"]})
    decided = time.time() * 1000
    if not decision["allowed"]:
        return {"asked": asked, "decided": decided, "how": f"refused {decision['reason']}"}
    sent = ["--output", os.devnull, "--write-out", "%{http_code}", "--request", "POST"]
    status = int(_output([*sent, "--max-time", str(decision["timeout_ms"] / 1000), os.environ["VENDOR_URL"]]))
    _ask("/v1/reports", [{"permit": decision["permit"], "status": status}])
    return {"asked": asked, "decided": decided, "how": f"made {status}"}


def main() -> None:
    while True:
        sys.stdout.write(json.dumps(_call()) + "\n")
        sys.stdout.flush()
        time.sleep(int(os.environ["PAUSE_MS"]) / 1000)


if __name__ == "__main__":
    main()
