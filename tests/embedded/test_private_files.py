"""Only their owner reads the files of the embedded servers, of a demo, and of a gateway."""

import os
import stat
import subprocess
import sys
from pathlib import Path

from controlplane import embedded
from controlplane.alerts.emergency.plan_files import replace

PROJECT = Path(__file__).resolve().parents[2]


def readable_by_others(folder: Path) -> list[str]:
    found = [folder, *(path for path in folder.rglob("*") if not path.is_symlink())]
    return [f"{path} {stat.filemode(mode)}" for path in found if (mode := path.stat().st_mode) & 0o077]


def test_the_embedded_servers_leave_nothing_that_others_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    before = os.umask(0o022)
    try:
        with embedded.running(list(embedded.SERVERS), folder=folder, forgetful=True):
            assert {path.name for path in folder.iterdir()} == {"postgres", "limits", "broker"}
            assert readable_by_others(folder) == []
    finally:
        os.umask(before)


def test_logs_of_a_demo_and_what_its_processes_write_are_private(tmp_path: Path) -> None:
    script = (
        "import os\n"
        "from pathlib import Path\n"
        "from tools.demo.data_dir import run_embedded_servers\n"
        "from tools.demo.processes import Process, Processes\n"
        "os.umask(0o022)\n"
        "with run_embedded_servers(check=False) as folder:\n"
        "    processes = Processes(folder / 'logs')\n"
        "    made = f\"import pathlib; (pathlib.Path({str(folder)!r}) / 'pods/web-1').mkdir(parents=True)\"\n"
        "    pod = processes.add(Process('pod', ['-c', made]))\n"
        "    processes.begin('pod')\n"
        "    assert pod.popen.wait() == 0\n"
    )
    folder = tmp_path / "data"
    variables = {"FUSEBOARD_DATA_DIR": str(folder)}
    subprocess.run([sys.executable, "-c", script], cwd=PROJECT, env=os.environ | variables, check=True)
    assert (folder / "logs/pod.log").exists()
    assert (folder / "pods/web-1").exists()
    assert readable_by_others(folder) == []


def test_the_folders_of_a_gateway_are_private_at_every_level(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        replace(tmp_path / "oncall/gateway/production.plan", b"secret")
    finally:
        os.umask(before)
    assert readable_by_others(tmp_path / "oncall") == []
