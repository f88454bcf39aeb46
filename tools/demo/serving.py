"""Runs a service of the demo as a process of its own: ``python -m tools.demo.<service> --port N``."""

import argparse
import logging
from collections.abc import Callable
from typing import Any

import uvicorn


def serve(
    make: Callable[[argparse.Namespace], Any],
    *,
    parser: argparse.ArgumentParser | None = None,
    **options: Any,
) -> None:
    """Make the ASGI application from the arguments, and serve it until the process is stopped."""
    logging.basicConfig(level=logging.WARNING, format="{asctime} {name}: {message}", style="{")
    logging.getLogger("fuseboard").setLevel(logging.INFO)
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    uvicorn.run(
        make(given), host=given.host, port=given.port, log_level="warning", access_log=False, **options
    )
