"""``protection``: what protects pods, for one dependency or for every pod of the environment."""

import argparse
from typing import Any

from msgspec import Struct

from fuseboard.cli.ctl.breakers import duration
from fuseboard.cli.ctl.client import Client, part
from fuseboard.cli.ctl.documents import NewRevision
from fuseboard.cli.ctl.limit_options import option
from fuseboard.cli.ctl.output import clean, say, say_json, say_revision, table
from fuseboard.contract.protection_fields import (
    CALL_PARTS,
    CALL_SETTINGS,
    OBSERVED_PARTS,
    POD_PARTS,
    POD_SETTINGS,
    TIERS,
    Setting,
    expected,
)

_PRESETS = ("bulkhead", "sla", "retry")


class Dependency(Struct, frozen=True):
    name: str
    version: int
    protection: dict[str, Any] | None = None
    advice: tuple[str, ...] = ()


class Configuration(Struct, frozen=True):
    revision: int
    protection: dict[str, Any] | None = None


def show(client: Client, given: argparse.Namespace) -> None:
    """Print the protection of a dependency's callers, or of every pod."""
    if given.dependency:
        found = client.get(f"dependencies/{part(given.dependency)}", Dependency)
        document, advice = found.protection, found.advice
    else:
        document, advice = client.get("configuration", Configuration).protection, ()
    if given.json:
        say_json(document)
        return
    if document is None:
        say("off")
    else:
        table([(path, _word(value)) for path, value in _flat(document)], heads=("setting", "value"))
    for text in advice:
        say(f"warning: {clean(text)}")


def set_protection(client: Client, given: argparse.Namespace) -> None:
    """Change the given values. All others stay, and those of a part that was off get its defaults."""
    path = f"dependencies/{part(given.dependency)}"
    version = given.if_version or client.get(path, Dependency).version
    body = {
        "protection": _change(given, CALL_SETTINGS),
        "preset": dict(given.preset),
        "reason": given.reason,
    }
    made = client.write("PATCH", f"{path}/protection", NewRevision, body, version=version)
    say_revision(given, made, f"The protection of {given.dependency} is changed")


def set_pods(client: Client, given: argparse.Namespace) -> None:
    """Change the given values of every pod's protection. All others stay."""
    revision = given.if_revision
    if revision is None:
        revision = client.get("configuration", Configuration).revision
    body = {
        "protection": _change(given, POD_SETTINGS),
        "observe_for_s": dict(given.observe),
        "reason": given.reason,
    }
    made = client.write("PATCH", "configuration/protection", NewRevision, body, version=revision)
    say_revision(given, made, "The protection of every pod is changed")


def add_call_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dependency")
    _add_options(parser, CALL_SETTINGS, tuple(CALL_PARTS))
    parser.add_argument(
        "--preset",
        type=_preset,
        action="append",
        default=[],
        metavar="PART=NAME",
        help="start from a preset: bulkhead=small, medium or large; sla=llm, api or database;"
        " retry=user-facing, background, llm or rate-limited; repeat the option for several",
    )
    parser.add_argument("--if-version", type=int, metavar="N", help="fail if this is not the current version")


def add_pod_options(parser: argparse.ArgumentParser) -> None:
    _add_options(parser, POD_SETTINGS, tuple(POD_PARTS))
    parser.add_argument(
        "--observe",
        type=_observed,
        action="append",
        default=[],
        metavar="PART=TIME",
        help=f"let a part ({', '.join(OBSERVED_PARTS)}) only decide and count for a time such as 2h, at most"
        " 168h; PART=off ends this; repeat the option for several parts",
    )
    parser.add_argument(
        "--if-revision", type=int, metavar="N", help="fail if the protection was changed after this revision"
    )


def _add_options(
    parser: argparse.ArgumentParser, settings: tuple[Setting, ...], parts: tuple[str, ...]
) -> None:
    for setting in settings:
        if setting.part == "observe":
            continue
        text = f"{setting.help} {expected(setting)}"
        name = _option(setting)
        if setting.kind == "routes":
            text = f"{text}; repeat the option for several; '' for none"
            parser.add_argument(name, action="append", type=_route, metavar="PATTERN=MS", help=_escaped(text))
        elif setting.kind in ("numbers", "words"):
            parser.add_argument(name, type=_three(setting), metavar="A,B,C", help=_escaped(text))
        elif setting.kind == "number":
            parser.add_argument(name, type=int, metavar="N", help=_escaped(text))
        else:
            choices = setting.words or ("yes", "no")
            parser.add_argument(name, choices=choices, metavar="|".join(choices), help=_escaped(setting.help))
    parser.add_argument(
        "--off",
        action="append",
        choices=(*parts, "all"),
        default=[],
        help="turn a part off, or all of them; repeat the option for several parts",
    )


def _change(given: argparse.Namespace, settings: tuple[Setting, ...]) -> Any:
    if "all" in given.off:
        return "off"
    change: dict[str, Any] = dict.fromkeys(given.off)
    for setting in settings:
        value = getattr(given, _option(setting).lstrip("-").replace("-", "_"), None)
        if value is None:
            continue
        if setting.kind == "flag":
            value = value == "yes"
        elif setting.kind == "routes":
            value = [route for route in value if route]
        if setting.part:
            change[setting.part] = {**(change.get(setting.part) or {}), setting.name: value}
        else:
            change[setting.name] = value
    return change


def _option(setting: Setting) -> str:
    return option("route" if setting.kind == "routes" else setting.path.replace(".", "_"))


def _escaped(text: str) -> str:
    """argparse formats help texts with ``%``."""
    return text.replace("%", "%%")


def _preset(text: str) -> tuple[str, str]:
    where, sign, name = text.partition("=")
    if not sign or where not in _PRESETS:
        raise argparse.ArgumentTypeError(f"invalid preset {text!r}: use {', '.join(_PRESETS)}, = and a name")
    return where, name


def _observed(text: str) -> tuple[str, int]:
    where, _, lasts = text.partition("=")
    if where not in OBSERVED_PARTS:
        raise argparse.ArgumentTypeError(f"invalid part {where!r}: use one of {', '.join(OBSERVED_PARTS)}")
    return where, 0 if lasts == "off" else duration(lasts)


def _route(text: str) -> dict[str, Any] | None:
    pattern, _, sla_ms = text.rpartition("=")
    if text and not (pattern and sla_ms.isascii() and sla_ms.isdigit()):
        raise argparse.ArgumentTypeError(f"invalid route {text!r}: use a pattern, = and milliseconds")
    return {"pattern": pattern, "sla_ms": int(sla_ms)} if text else None


def _three(setting: Setting) -> Any:
    def three(text: str) -> list[Any]:
        found = text.split(",")
        if len(found) != len(TIERS) or (
            setting.kind == "numbers" and not all(each.isascii() and each.isdigit() for each in found)
        ):
            raise argparse.ArgumentTypeError(f"invalid value {text!r}: use {expected(setting)}")
        return [int(each) for each in found] if setting.kind == "numbers" else found

    return three


def _flat(document: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in document.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value))
    return found


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    if isinstance(value, dict):
        return f"{value.get('pattern', '')}={value.get('sla_ms', '')}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "off" if value is None else str(value)
