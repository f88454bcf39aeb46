"""``template``: limit templates. One revision changes all limits that use a template."""

import argparse
from typing import Any

from msgspec import Struct

from fuseboard.cli.ctl.client import Client, part
from fuseboard.cli.ctl.documents import NewRevision
from fuseboard.cli.ctl.exit_codes import Exit, Failed
from fuseboard.cli.ctl.limit_options import given_values
from fuseboard.cli.ctl.output import clean, say, say_json, say_result, say_revision, table

#: The limits of a template that are listed. There may be a hundred thousand.
_MAX_FOLLOWERS = 100


class Followers(Struct, frozen=True):
    limits: int
    tiers: int
    tenants: int
    dependencies: int
    subject_limits: int


class Template(Struct, frozen=True):
    name: str
    title: str
    version: int
    algorithm: str
    limit: int
    window_s: int
    burst: int
    shadow: bool
    followers: Followers


class Follower(Struct, frozen=True):
    kind: str
    name: str
    limit: str
    own: dict[str, Any]


class Planned(Struct, frozen=True):
    revision: int
    changes: int
    text: str
    followers: Followers


def listing(client: Client, given: argparse.Namespace) -> None:
    found = client.get("templates", list[Template])
    if given.json:
        say_json(found)
        return
    rows = [(row.name, _numbers(row), _who(row.followers), clean(row.title)) for row in found]
    table(rows, heads=("template", "", "followed by", ""))


def show(client: Client, given: argparse.Namespace) -> None:
    path = f"templates/{part(given.template)}"
    template = client.get(path, Template)
    found = client.get(f"{path}/followers", list[Follower], limit=_MAX_FOLLOWERS)
    if given.json:
        say_json({"template": template, "followers": found})
        return
    say(f"{template.name}: {_numbers(template)}, version {template.version}")
    rows = [(f"{row.kind} {clean(row.name)}", row.limit, _own(row.own)) for row in found]
    table(rows, heads=("followed by", "limit", "its own"))
    if template.followers.limits > len(found):
        say(f"... and {template.followers.limits - len(found):,} more")


def set_template(client: Client, given: argparse.Namespace) -> None:
    """Change exactly what was shown, or nothing. Options that are not given keep their values."""
    body = given_values(given) | {"reason": given.reason}
    if given.title:
        body["title"] = given.title
    known = {row.name: row for row in client.get("templates", list[Template])}
    version = known[given.template].version if given.template in known else 0
    path = f"templates/{part(given.template)}"
    planned = client.write("POST", f"{path}/preview", Planned, body)
    if not given.json:
        for line in planned.text.splitlines():
            say(clean(line))
        say(f"This changes {_who(planned.followers)}.")
    if given.dry_run:
        if given.json:
            say_json(planned)
        return
    made = client.write("PUT", path, NewRevision, body, version=version)
    say_result(given, made, f"Template {given.template} is saved as revision {made.revision}.")


def remove(client: Client, given: argparse.Namespace) -> None:
    if given.keep_values and given.instead:
        raise Failed(Exit.USAGE, "give --keep-values or --instead, not both")
    path = f"templates/{part(given.template)}"
    version = client.get(path, Template).version
    made = client.write(
        "DELETE",
        path,
        NewRevision,
        version=version,
        reason=given.reason,
        keep_values="true" if given.keep_values else None,
        instead=given.instead,
    )
    say_revision(given, made, f"Template {given.template} is removed")


def _numbers(template: Template) -> str:
    at_once = (
        f", {template.burst} at once" if template.algorithm == "token_bucket" else f", {template.algorithm}"
    )
    return f"{template.limit} per {template.window_s} s{at_once}{', shadow' if template.shadow else ''}"


def _who(followers: Followers) -> str:
    words = (
        (followers.tiers, "tier", "tiers"),
        (followers.tenants, "tenant", "tenants"),
        (followers.dependencies, "dependency", "dependencies"),
        (followers.subject_limits, "limit of callers without a tenant", "limits of callers without a tenant"),
    )
    said = [f"{count:,} {one if count == 1 else many}" for count, one, many in words if count]
    limits = f"{followers.limits:,} {'limit' if followers.limits == 1 else 'limits'}"
    return f"{limits} of {', '.join(said)}" if said else "no limit"


def _own(own: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in own.items()) or "nothing"
