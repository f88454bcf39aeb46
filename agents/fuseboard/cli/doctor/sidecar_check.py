"""Could this host run a sidecar with all its connections?"""

from importlib.util import find_spec

from fuseboard.cli.doctor.findings import Finding, ok, warn


def check_sidecar() -> list[Finding]:
    """The files that a sidecar may open. Without httptools, this host runs no sidecar."""
    if find_spec("httptools") is None:
        return []
    from fuseboard.serving.http1 import Bounds
    from fuseboard.serving.open_files import most_open_files
    from fuseboard.sidecar.app import needed_files

    # The two listeners for the application, and the unix socket for Envoy.
    needed, allowed = needed_files([Bounds()] * 3), most_open_files()
    if allowed is None or allowed >= needed:
        return [ok("open files", f"enough for a sidecar, which needs {needed:,} with all its connections")]
    return [
        warn(
            "open files",
            f"a sidecar may open {allowed:,}, and needs {needed:,} with all its connections",
            "if a sidecar runs here, raise the hard limit, as with LimitNOFILE or ulimit -Hn",
        )
    ]
