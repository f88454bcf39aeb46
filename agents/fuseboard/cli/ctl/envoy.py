"""``envoy``: the rules for descriptors of Envoy, and the pods that answer it."""

import argparse
import sys
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from fuseboard.cli.ctl.client import Client, parts
from fuseboard.cli.ctl.commands import Commands, command, group
from fuseboard.cli.ctl.documents import NewRevision
from fuseboard.cli.ctl.exit_codes import Exit, Failed
from fuseboard.cli.ctl.output import moment, say, say_json, say_revision, table
from fuseboard.cli.ctl.plans import apply_content, show_plan
from fuseboard.cli.descriptor_files import are_right, read_files
from fuseboard.errors import Misconfigured


class Domain(Struct, frozen=True):
    domain: str
    rules: int
    version: int


class Descriptors(Domain, frozen=True):
    file: str


class AnsweringPod(Struct, frozen=True):
    name: str
    service: str
    state: str
    revision: int
    started_at: datetime
    asked: int


class Answering(Struct, frozen=True):
    since: datetime
    pods: tuple[AnsweringPod, ...]
    pods_total: int


def add_to(wanted: Commands) -> None:
    about = group(
        wanted, "envoy", "print, import and delete the rules for descriptors of Envoy; list its pods"
    )
    command(about, "list", list_domains, "list domains, and how many rules each has")
    put = command(
        about, "import", import_files, "set the rules of domains, from files of envoyproxy/ratelimit"
    )
    put.add_argument("files", metavar="FILE", type=Path, nargs="+", help="the YAML of one domain")
    what = put.add_mutually_exclusive_group(required=True)
    what.add_argument("--plan", action="store_true", help="print what the files would change")
    what.add_argument("--apply", action="store_true", help="set the rules, as one revision")
    put.add_argument("--reason", help="why; stored in the audit log; with --apply")
    put.add_argument("--prune", action="store_true", help="also delete the rules of all other domains")
    put.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    shown = command(about, "export", export_file, "print the file of a domain, as it was written")
    gone = command(about, "remove", remove, "delete the rules of a domain", reason=True)
    for parser in (shown, gone):
        parser.add_argument("domain")
    command(about, "pods", list_pods, "list the pods that answered Envoy in the last 15 minutes")


def list_domains(client: Client, given: argparse.Namespace) -> None:
    found = client.get("descriptors", list[Domain])
    if given.json:
        say_json(found)
        return
    table([(row.domain, f"{row.rules:,}") for row in found], heads=("domain", "rules"))


def import_files(client: Client, given: argparse.Namespace) -> None:
    """Print what the files would change, and with ``--apply`` set the rules of all of them or of none."""
    if given.apply and not given.reason:
        raise Failed(Exit.USAGE, "--apply needs --reason")
    try:
        files = read_files(given.files)
    except Misconfigured as error:
        raise Failed(Exit.USAGE, str(error)) from error
    if not are_right(files):
        raise Failed(Exit.REFUSED, "nothing was changed")
    domains = {each.file.domain.domain: {"file": each.text} for each in files if each.file.domain is not None}
    # JSON is YAML, but for these three, which YAML would read as the end of a line.
    plan = msgspec.json.encode({"descriptors": domains}).decode()
    for letter in "\x85\u2028\u2029":
        plan = plan.replace(letter, f"\\u{ord(letter):04x}")
    if given.apply:
        apply_content(client, given, plan.encode(), "application/yaml")
    else:
        for path, _, file in files:
            sys.stderr.writelines(f"{path}:{line}: note: {text}\n" for line, text in file.notes)
        show_plan(client, given, plan.encode(), "application/yaml")


def export_file(client: Client, given: argparse.Namespace) -> None:
    found = client.get(f"descriptors/{parts(given.domain)}", Descriptors)
    if given.json:
        say_json(found)
    else:
        sys.stdout.buffer.write(found.file.encode())


def remove(client: Client, given: argparse.Namespace) -> None:
    path = f"descriptors/{parts(given.domain)}"
    version = client.get(path, Descriptors).version
    made = client.write("DELETE", path, NewRevision, version=version, reason=given.reason)
    say_revision(given, made, f"The rules of domain {given.domain} are removed")


def list_pods(client: Client, given: argparse.Namespace) -> None:
    found = client.get("descriptor-figures", Answering)
    if given.json:
        say_json(found)
        return
    rows = [
        (row.name, row.service, row.state, f"{row.asked:,}", str(row.revision), moment(row.started_at))
        for row in found.pods
    ]
    table(rows, heads=("pod", "service", "state", "answered", "revision", "runs since"))
    say(f"{len(rows)} of at least {found.pods_total} pods since {moment(found.since)}")
