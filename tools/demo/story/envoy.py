"""Envoy asks about every request of an application that knows nothing of Fuseboard."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import httpx

from controlplane.editing import edits
from controlplane.embedded.children import free_port, spawn, stop
from controlplane.installation import FOLDER as PROJECT
from controlplane.policies.models import Tenant
from fuseboard.contract.words import Reason
from tools.demo.scenario import QUOTA, TIERS
from tools.demo.seed import DIRECTOR, ENVIRONMENT
from tools.demo.story.carrier import register_dependency, sidecar_beside
from tools.demo.story.chapter import Chapter, CheckFailed, CheckSkipped
from tools.demo.story.operator import send_override

NAME = "parcel-gateway"
DEPENDENCY = "parcel-rates"
TENANT, TIER = "parcel-shop", "free"
NEW_LIMIT = 5_000
#: So many requests in a row pass only under the new quota.
_IN_A_ROW = 3 * TIERS[TIER].burst
_REASON = "The carrier changes its rates"
_PAUSE_S = 0.01
#: The names that ``fuseboard envoy-config`` uses.
_FILES = {
    "edge": "domain: edge\ndescriptors:\n  - key: tenant\n    means: tenant\n",
    "calls": f"""\
domain: calls
descriptors:
  - key: destination_cluster
    value: app
    dependency: {DEPENDENCY}
""",
}

Ask = Callable[[], httpx.Response]


def envoy_429(chapter: Chapter) -> str:
    """The tenant's quota decides, and an edit of it on a page reaches the next requests."""
    quota = TIERS[TIER]
    with _behind_envoy(chapter) as ask:
        began = time.monotonic()
        answers = [ask() for _ in range(4 * quota.burst)]
        took_s = time.monotonic() - began
        refused = [answer for answer in answers if answer.status_code == 429]
        allowed = len(answers) - len(refused)
        most = quota.burst + int(quota.limit * took_s / quota.window_s) + 1
        if not refused or allowed > most:
            raise CheckFailed(
                f"{allowed} of {len(answers)} requests passed in {took_s:.2f} s, at most {most} by the quota"
            )
        _check_refusal(refused[0], Reason.QUOTA)
        took_ms = _raise_quota(chapter, ask)
    return (
        f"{allowed} of {len(answers)} requests passed Envoy in {took_s:.2f} s (at most {most}), then 429"
        f" with Retry-After {refused[0].headers['retry-after']} and our body; the quota that the form raised"
        f" decides {took_ms:.0f} ms after it was sent"
    )


def envoy_503(chapter: Chapter) -> str:
    """A breaker that is opened by hand, or by failures behind Envoy, answers 503. Nothing runs Python."""
    with _behind_envoy(chapter) as ask:
        trip_ms = _act(chapter, ask, "forced_open", _is_refused(Reason.FORCED_OPEN))
        reset_ms = _act(chapter, ask, "reset", lambda answer: answer.status_code == 200)
        chapter.demo.switch(DEPENDENCY, failure_percent=100, latency_ms=12)
        failing = time.monotonic()
        try:
            opened_ms = _first(chapter, ask, failing, _is_refused(Reason.BREAKER_OPEN), within_s=5)
        finally:
            chapter.demo.switch(DEPENDENCY, failure_percent=0, latency_ms=12)
        well = time.monotonic()
        closed_ms = _first(chapter, ask, well, lambda answer: answer.status_code == 200, within_s=15)
    return (
        f"forced open by hand, Envoy answers 503 with our body {trip_ms:.0f} ms after the form was sent, and"
        f" 200 {reset_ms:.0f} ms after the reset; the carrier fails, and its breaker is open after"
        f" {opened_ms:.0f} ms; it recovers, and calls pass after {closed_ms:.0f} ms"
    )


def _check_refusal(answer: httpx.Response, reason: Reason) -> None:
    missing = [name for name in ("retry-after", "fuseboard-refusal") if name not in answer.headers]
    kind = answer.headers.get("content-type", "")
    if missing or kind != "application/problem+json" or answer.json()["reason"] != reason:
        raise CheckFailed(f"a refusal lacks {missing}; it is {kind}: {answer.text[:300]}")


def _is_refused(reason: Reason) -> Callable[[httpx.Response], bool]:
    def holds(answer: httpx.Response) -> bool:
        # The carrier fails with 503, too.
        if answer.status_code != 503 or "fuseboard-refusal" not in answer.headers:
            return False
        return bool(answer.json()["reason"] == reason)

    return holds


def _raise_quota(chapter: Chapter, ask: Ask) -> float:
    """Save the quota by the form; milliseconds until it decides."""
    admin = chapter.browser("admin")
    limit, burst = f"limit.{QUOTA}.limit", f"limit.{QUOTA}.burst"
    form = admin.form(f"/edit/tenant?key={TENANT}", limit, burst, "reason")
    sent = time.monotonic()
    saved = admin.send(form, **{limit: str(NEW_LIMIT), burst: str(NEW_LIMIT)}, reason=_REASON)
    if saved.status_code != 200:
        raise CheckFailed(f"the form answered {saved.status_code}: {saved.text[:300]}")
    passed: list[float] = []

    def holds() -> bool:
        asked = time.monotonic()
        if ask().status_code == 200:
            passed.append(asked)
        else:
            passed.clear()
        return len(passed) >= _IN_A_ROW

    until_s = 1.0 * chapter.demo.patience
    while not holds():
        if time.monotonic() - sent > until_s + _IN_A_ROW * _PAUSE_S:
            raise CheckFailed(f"the new quota did not decide within {until_s:.0f} s")
    return (passed[0] - sent) * 1000


def _act(chapter: Chapter, ask: Ask, act: str, holds: Callable[[httpx.Response], bool]) -> float:
    return _first(chapter, ask, send_override(chapter, DEPENDENCY, act, _REASON), holds, within_s=1)


def _first(
    chapter: Chapter, ask: Ask, since: float, holds: Callable[[httpx.Response], bool], *, within_s: float
) -> float:
    """Milliseconds from ``since`` until the first such answer. Raises ``CheckFailed``."""
    last: list[httpx.Response] = []

    def asked() -> bool:
        last[:] = [ask()]
        return holds(last[0])

    try:
        chapter.until("Envoy to answer so", asked, within_s=within_s)
    except CheckFailed as failed:
        raise CheckFailed(
            f"{failed}; its last answer was {last[0].status_code} {last[0].text[:200]}"
        ) from None
    return (time.monotonic() - since) * 1000


@contextmanager
def _behind_envoy(chapter: Chapter) -> Iterator[Ask]:
    """Envoy before the carrier, with a sidecar that it asks; a function that sends a request."""
    binary = PROJECT / ".venv-envoy/bin/envoy"
    if not binary.exists():
        raise CheckSkipped("Envoy is not installed: run make engine-environments")
    revision = _register()
    # The path of a unix socket has at most 108 bytes.
    with TemporaryDirectory() as folder:
        socket = f"{folder}/envoy.sock"
        with (
            sidecar_beside(chapter, NAME, DEPENDENCY, revision, "--envoy-unix", socket),
            _envoy(chapter, binary, socket) as port,
            httpx.Client(
                base_url=f"http://127.0.0.1:{port}",
                headers={"x-tenant": TENANT},
                timeout=5.0,
                trust_env=False,
            ) as client,
        ):
            chapter.until("Envoy to answer", lambda: _answers(client), within_s=20)

            def ask() -> httpx.Response:
                time.sleep(_PAUSE_S)
                return client.post(f"/{DEPENDENCY}/call")

            yield ask


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get(f"/{DEPENDENCY}").status_code in (200, 429)
    except httpx.TransportError:
        return False


def _register() -> int:
    """Dependency, tenant, and the rules of both domains; the revision that has them."""
    register_dependency(DEPENDENCY, "Parcel rates", "The rates of yesterday are shown.")
    usual: dict[str, Any] = {"environment": ENVIRONMENT, "reason": _REASON, "actor": DIRECTOR}
    if not Tenant.objects.filter(environment__slug=ENVIRONMENT, key=TENANT).exists():
        edits.create_tenant(tenant=TENANT, tier=TIER, title="Parcel Shop", **usual)
    return max(
        edits.set_descriptors(domain=domain, file=file, expected_version=None, **usual)
        for domain, file in _FILES.items()
    )


@contextmanager
def _envoy(chapter: Chapter, binary: Path, socket: str) -> Iterator[int]:
    """Envoy with the configuration that the command prints; the port that it takes requests on."""
    vendor, port, log = urlsplit(chapter.demo.url("vendor")), free_port(), f"{NAME}-envoy.log"
    addresses = {
        "--unix": socket,
        "--listen": f"127.0.0.1:{port}",
        "--upstream": vendor.netloc,
        "--admin": "127.0.0.1:0",
        # On a machine that a dozen processes share, the usual 20 ms are missed without a fault.
        "--timeout-ms": "1000",
    }
    options = [word for option in addresses.items() for word in option]
    config = chapter.demo.folder / f"{NAME}.yaml"
    printed = run(  # noqa: S603 - our own command
        [sys.executable, "-m", "fuseboard", "envoy-config", "--full", *options],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    config.write_text(printed.stdout)
    flags = ["--concurrency", "1", "-l", "warning", "--disable-hot-restart"]
    command: list[str | Path] = [binary, "-c", config, *flags]
    with (chapter.demo.processes.logs / log).open("wb") as output:
        process = spawn(command, log=output)
    try:
        yield port
    finally:
        stop(process, grace_s=5.0)
        config.unlink()
