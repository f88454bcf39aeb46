"""What others depend on of the control plane is as version 0.1.0 had it, or more."""

import csv
from typing import Any

import pytest
import yaml

from tests.contract.compat import control_side, openapi, python_api
from tests.contract.compat.compare import RECORD, broken_commands, broken_shapes, check, missing_names
from tests.contract.compat.release import ROOT
from tests.contract.compat.served import ControlPlane, observe
from tests.controlplane.calling import API, send, token_of

COMPARED = {
    "openapi": openapi.broken,
    "manage": broken_commands,
    "variables_of_control_plane": missing_names,
    "audit_actions": missing_names,
    "celery": missing_names,
    "python_api": python_api.broken,
}


def test_everything_that_is_recorded_is_compared() -> None:
    assert COMPARED.keys() == control_side.SURFACES.keys()


@pytest.mark.parametrize("name", COMPARED)
def test_it_is_as_recorded(name: str) -> None:
    today: Any = control_side.SURFACES[name](ROOT)
    check(name, today, COMPARED[name])


def test_what_is_seen_from_outside_is_as_recorded(plane: ControlPlane) -> None:
    seen = observe(plane)
    check("status_protocol", seen["status_protocol"], broken_shapes)
    check("notify_channels", seen["notify_channels"], broken_shapes)
    check("metrics", seen["metrics"], missing_names)
    before = (RECORD / "export.yaml").read_text()
    assert not list(missing_names(yaml.safe_load(before), yaml.safe_load(seen["export.yaml"])))
    assert not list(
        missing_names(rows("", (RECORD / "export.csv").read_text()), rows("", seen["export.csv"]))
    )


def rows(_: str, text: str) -> dict[str, Any]:
    """Of a CSV, by tenant and quota."""
    return {f"{row['tenant']} {row['quota']}": row for row in csv.DictReader(text.splitlines())}


def test_files_that_were_exported_can_be_imported(production: str, call: Any) -> None:
    for name, kind in (("export.yaml", "application/yaml"), ("export.csv", "text/csv")):
        file = (RECORD / name).read_text()
        revision = call("admin", "GET", f"{API}/configuration").json()["revision"]
        path = f"{API}/apply?expected_revision={revision}&reason=exported by version 0.1.0"
        made = send(token_of("admin"), "POST", path, file, **{"Content-Type": kind})
        assert made.status_code == 200, made.content
        planned = send(token_of("admin"), "POST", f"{API}/plan", file, **{"Content-Type": kind})
        assert planned.json()["changes"] == 0
