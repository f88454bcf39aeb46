"""A dependency that programs in other languages call, and the sidecar beside them."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from controlplane.editing import edits
from controlplane.embedded.children import free_port
from controlplane.policies.models import Dependency
from tools.demo.processes import Process
from tools.demo.scenario import ZONES
from tools.demo.seed import DIRECTOR, ENVIRONMENT
from tools.demo.story.chapter import Chapter


def register_dependency(name: str, title: str, fallback_note: str) -> None:
    """Create the dependency, unless an earlier checkpoint has."""
    if Dependency.objects.filter(environment__slug=ENVIRONMENT, name=name).exists():
        return
    edits.create_dependency(
        environment=ENVIRONMENT,
        dependency=name,
        kind="external",
        title=title,
        owner="logistics-team",
        fallback_note=fallback_note,
        timeout_ms=2_000,
        protection=None,
        runbook=None,
        breaker={"open_ms": 1_000, "open_max_ms": 4_000},
        reason="A carrier is called from other languages",
        actor=DIRECTOR,
    )


@contextmanager
def sidecar_beside(
    chapter: Chapter, name: str, dependency: str, revision: int, *options: str
) -> Iterator[tuple[str, Path]]:
    """A sidecar that decides by this revision: its URL, and the file of its token."""
    processes, token_file = chapter.demo.processes, chapter.demo.folder / f"{name}.token"
    token = secrets.token_urlsafe(18)
    token_file.write_text(token)
    environment = chapter.demo.environment_of_pod(name, service=name, zone=ZONES[0])
    arguments = ["-m", "fuseboard", "sidecar", "--probes", "off", "--listen", "127.0.0.1:{port}", *options]
    process = Process(name, arguments, environment | {"FUSEBOARD_SIDECAR_TOKEN_FILE": str(token_file)})
    process.port = free_port()
    processes.add(process)
    try:
        processes.begin(name)
        headers = {"authorization": f"Bearer {token}"}
        with httpx.Client(base_url=process.url, headers=headers, timeout=5.0, trust_env=False) as client:
            chapter.until(
                "the sidecar to decide", lambda: _decides(client, dependency, revision), within_s=20
            )
        yield process.url, token_file
    finally:
        processes.stop(name)
        del processes.by_name[name]
        token_file.unlink()


def _decides(client: httpx.Client, dependency: str, revision: int) -> bool:
    try:
        answer = client.post("/v1/calls", json={"dependency": dependency})
    except httpx.TransportError:
        return False
    decision = answer.raise_for_status().json()
    if decision["allowed"]:
        client.post("/v1/give-back", json={"permit": decision["permit"]})
    return bool(decision["mode"] == "shared" and decision["revision"] >= revision)
