"""How much memory another process takes."""

import re
from pathlib import Path

import psutil


def most_memory(pid: int) -> int:
    """The most resident bytes that a process had so far; where the system does not say, what it has now."""
    status = Path(f"/proc/{pid}/status")
    peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(peak[1]) * 1024 if peak else psutil.Process(pid).memory_info().rss
