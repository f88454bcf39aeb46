"""Can this pod decide? Checks settings, disk, Redis and gateway, with one finding per check."""

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from fuseboard.cli.doctor.findings import Finding, Level, fail, ok, skip, warn
from fuseboard.cli.doctor.gateway_check import check_gateway
from fuseboard.cli.doctor.redis_check import check_redis
from fuseboard.cli.doctor.sidecar_check import check_sidecar
from fuseboard.configuration.checked_config import ConfigError
from fuseboard.configuration.disk import DiskError, read_bootstrap
from fuseboard.errors import Misconfigured
from fuseboard.settings import AgentSettings
from fuseboard.store.off_store import REDIS_IS_OFF

__all__ = ["Finding", "Level", "examine"]


async def examine(environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Every check, in the order in which to fix problems. Leaves no changes behind."""
    try:
        settings = AgentSettings.from_env(environ)
    except Misconfigured as error:
        return [
            fail("settings", str(error), "set the environment of the pod, then try again"),
            skip("everything else", "needs the settings"),
        ]
    if settings.off:
        return [
            warn(
                "settings",
                f"{REDIS_IS_OFF}: every call passes, and the control plane does not see this pod",
                "set FUSEBOARD_REDIS_URL to the address of Redis, except on a laptop and in CI",
            ),
            skip("everything else", "needs Redis"),
        ]
    findings = [ok("settings", str(settings)), _check_state_dir(settings), *_check_bootstrap(settings)]
    findings += check_sidecar()
    findings += await check_redis(settings)
    findings += await check_gateway(settings)
    return findings


def _check_state_dir(settings: AgentSettings) -> Finding:
    path = settings.state_dir
    if path is None:
        return warn(
            "state directory",
            "off: a pod that starts without Redis and gateway limits nothing",
            "set FUSEBOARD_STATE_DIR to a directory that survives the process",
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".doctor-", dir=path)
        os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(name)
    except OSError as error:
        return fail(
            "state directory",
            f"{path} cannot be written: {error.strerror}",
            f"make it writable for the pod's user (uid {os.getuid()}), or change FUSEBOARD_STATE_DIR",
        )
    return ok("state directory", f"{path} is writable")


def _check_bootstrap(settings: AgentSettings) -> list[Finding]:
    if settings.bootstrap_file is None:
        return []
    try:
        offer = read_bootstrap(settings.bootstrap_file, environment=settings.environment)
    except (DiskError, ConfigError, msgspec.DecodeError) as error:
        says = f"{settings.bootstrap_file}: {error}"
        return [fail("bootstrap file", says, "fix or remove it: a first start with everything down needs it")]
    tiers = len(offer.policy.tiers) if offer.policy is not None else 0
    return [ok("bootstrap file", f"{settings.bootstrap_file} has {tiers} tiers")]
