"""Containers of ``deploy/plain`` as services of ``tests.repo.composed``: how this machine starts them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.deploy.manifests import process
from tests.repo.composed import USER, Machine, as_first_process

#: The port of a container -> the name of its port on this machine.
_PORTS = {8000: "pod-web", 8001: "pod-gateway", 9101: "pod-worker"}


def service_of(part: str) -> dict[str, Any]:
    """The container of a process, with the fields of a service of Compose."""
    found = process("plain", part)
    # A claim too is a folder of this pod alone.
    own = [f"{path}:uid=10001,mode=0700" for path in found.writable]
    return {
        "build": {"target": "controlplane"},
        "command": found.container["command"],
        "environment": found.environment,
        "tmpfs": own,
    }


def _mount_secrets(machine: Machine, part: str, secrets: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Write the files of a container for its group, as the kubelet does: variable -> its file."""
    folder = machine.folder / "secrets" / part
    folder.mkdir(mode=0o755, parents=True)
    found = process("plain", part)
    for name, (secret, key) in found.secret_files.items():
        file = folder / name
        file.write_text(secrets[secret][key])
        if os.geteuid() == 0:
            os.chown(file, 0, USER)
        file.chmod(0o440)
    mounted = "/run/secrets/fuseboard/"
    return {
        variable: str(folder / value.removeprefix(mounted))
        for variable, value in found.environment.items()
        if value.startswith(mounted)
    }


def begin(machine: Machine, part: str, secrets: Mapping[str, Mapping[str, str]]) -> None:
    """Start the container as the first process of its own namespace, which no init is there to help.

    ``secrets``: the keys of each Secret, of which it gets those that its manifest names.
    """
    ports = {str(port): str(machine.ports[name]) for port, name in _PORTS.items()}
    listens = f"127.0.0.1:{machine.ports['pod-worker']}"
    machine.start(
        f"pod-{part}",
        service_of(part),
        first=as_first_process(),
        **_mount_secrets(machine, part, secrets),
        **(ports | ({"FUSEBOARD_WORKER_METRICS_PORT": listens} if part == "worker" else {})),
    )


def probes(machine: Machine, part: str) -> list[str]:
    """The addresses on this machine that the kubelet would ask."""
    container = process("plain", part).container
    ports = {port["name"]: machine.ports[_PORTS[port["containerPort"]]] for port in container["ports"]}
    found = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    return sorted({f"http://127.0.0.1:{ports[probe['port']]}{probe['path']}" for probe in found})


def beat_is_healthy(machine: Machine) -> list[str]:
    """The command of its probe, with the folder of this machine."""
    *shell, script = process("plain", "beat").container["livenessProbe"]["exec"]["command"]
    here: Path = machine.memory_of("pod-beat", service_of("beat"))["/run/fuseboard"]
    return [*shell, script.replace("/run/fuseboard", str(here))]


def gateway_addresses(machine: Machine) -> dict[str, str]:
    """The name of all gateways -> the one that runs here."""
    url = process("plain", "web").environment["FUSEBOARD_GATEWAY_URL"]
    return {urlsplit(url).netloc: f"127.0.0.1:{machine.ports['pod-gateway']}"}
