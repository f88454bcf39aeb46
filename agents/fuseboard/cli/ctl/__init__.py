"""``fuseboard ctl``: what the pages can do, from a shell or a pipeline. A thin client of the REST API.

::

    fuseboard ctl plan quotas.yaml                        what would applying this file change?
    fuseboard ctl apply quotas.yaml --reason "..."
    fuseboard ctl trip payments-api --for 1h --reason "..."
    fuseboard ctl quota set acme requests --limit 1000 --reason "..."

The address and the token are in FUSEBOARD_API_URL and FUSEBOARD_API_TOKEN (or
FUSEBOARD_API_TOKEN_FILE). It needs neither Redis nor the gateway.
"""

import argparse
import sys
from collections.abc import Callable

from fuseboard.cli.ctl import (
    backlogs,
    breakers,
    budgets,
    change_requests,
    completion,
    counters,
    envoy,
    fleet,
    limit_templates,
    models,
    plans,
    protection,
    refusals,
    tenants,
)
from fuseboard.cli.ctl.client import Client
from fuseboard.cli.ctl.commands import Commands, command, group
from fuseboard.cli.ctl.exit_codes import ApprovalNeeded, Exit, Failed
from fuseboard.cli.ctl.limit_options import add_limit_options, option
from fuseboard.cli.ctl.settings import CtlSettings
from fuseboard.contract.budgets import AtSpent
from fuseboard.contract.limit_fields import QUOTAS
from fuseboard.contract.words import Period


def run(given: argparse.Namespace, parser: Callable[[], argparse.ArgumentParser]) -> int:
    """Returns the exit code, see ``Exit``. Errors go to stderr. ``parser`` makes that of all commands."""
    if given.ctl == "completion":
        sys.stdout.write(completion.script(given.shell, parser()))
        return Exit.DONE
    try:
        client = Client(CtlSettings.from_env(environment=given.environment))
        if given.use:
            what = f"{given.ctl} is deprecated and will be removed in release 0.3: use {given.use}"
            sys.stderr.write(f"fuseboard ctl: {what}\n")
        code = given.does(client, given)
    except ApprovalNeeded as waiting:
        return change_requests.waits(given, waiting.content)
    except Failed as failure:
        sys.stderr.write(f"fuseboard ctl: {failure}\n")
        return failure.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output has enough, like `head`.
        sys.stderr.close()
        return Exit.DONE
    return Exit(code or Exit.DONE)


def add_to(commands: Commands) -> None:
    ctl = commands.add_parser("ctl", help="edit and display the configuration through the REST API")
    ctl.add_argument(
        "--environment", default="", help="the environment (default: $FUSEBOARD_ENVIRONMENT, or production)"
    )
    wanted = ctl.add_subparsers(dest="ctl", required=True, metavar="COMMAND")
    _add_plans(wanted)
    _add_revisions(wanted)
    _add_requests(wanted)
    _add_breakers(wanted)
    _add_backlogs(wanted)
    _add_quotas(wanted)
    _add_counters(wanted)
    _add_tenants(wanted)
    _add_templates(wanted)
    _add_models(wanted)
    _add_budgets(wanted)
    envoy.add_to(wanted)
    _add_protection(wanted)
    _add_fleet(wanted)
    shells = wanted.add_parser("completion", help="print a completion script for these commands")
    shells.add_argument("shell", choices=completion.SHELLS)


def _add_duration(parser: argparse.ArgumentParser, says: str, *, default: int | None = None) -> None:
    """``--for``. Without a default, it is required."""
    parser.add_argument(
        "--for",
        dest="lasts",
        required=default is None,
        type=breakers.duration,
        default=default,
        metavar="TIME",
        help=f"{says}, such as 90s, 15m or 2h",
    )


def _add_plans(wanted: Commands) -> None:
    plan = command(wanted, "plan", plans.plan, "print what a file would change")
    plan.add_argument(
        "--detailed-exit-code", action="store_true", help="exit with 10 if the file would change anything"
    )
    replay = command(
        wanted,
        "what-if",
        plans.what_if,
        "replay the last days, and print how many requests a file would have refused",
    )
    replay.add_argument("file", help="YAML or CSV; - for standard input")
    replay.add_argument("--days", type=int, default=7, help="days to replay (default: 7)")
    applied = command(wanted, "apply", plans.apply, "apply a file, as one revision", reason=True)
    applied.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    for parser in (plan, applied):
        parser.add_argument("file", help="YAML or CSV; - for standard input")
        parser.add_argument(
            "--prune",
            action="store_true",
            help="also remove entries that the sections of the file do not list",
        )
    exported = command(wanted, "export", plans.export, "print the configuration as a YAML file")
    exported.add_argument(
        "--nginx", action="store_true", help="print the request limits as a configuration for nginx"
    )
    exported.add_argument(
        "--header",
        default="X-Tenant",
        metavar="NAME",
        help="the header that contains the tenant (default: X-Tenant)",
    )
    exported.add_argument(
        "--gateways",
        type=int,
        default=1,
        metavar="N",
        help="the number of nginx servers that share the limits (default: 1)",
    )


def _add_revisions(wanted: Commands) -> None:
    listed = command(wanted, "revisions", plans.revisions, "list the newest revisions")
    listed.add_argument("--limit", type=int, default=20, help="the most entries to print (default: 20)")
    back = command(
        wanted,
        "rollback",
        plans.rollback,
        "restore the configuration of an earlier revision, as a new revision",
        reason=True,
    )
    back.add_argument("to", type=int, metavar="revision")
    undone = command(
        wanted,
        "revert",
        plans.revert,
        "undo what one revision changed, and keep later changes",
        reason=True,
    )
    undone.add_argument("number", type=int, metavar="revision")
    undone.add_argument("--tenant", default="", metavar="NAME", help="revert only this tenant")
    undone.add_argument(
        "--overwrite", action="store_true", help="also revert values that another edit has changed since"
    )
    undone.add_argument("--dry-run", action="store_true", help="show what it would do, and change nothing")


def _add_requests(wanted: Commands) -> None:
    says = "list change requests, or show one"
    for listed in (
        command(wanted, "change-requests", change_requests.listing, says),
        command(wanted, "requests", change_requests.listing, says, use="change-requests"),
    ):
        listed.add_argument("number", type=int, nargs="?", metavar="request")
        listed.add_argument(
            "--state",
            default="",
            help="list only one state: open, approved, applied, rejected, withdrawn, expired",
        )
        listed.add_argument("--limit", type=int, default=20, help="the most entries to print (default: 20)")
    agreed = command(wanted, "approve", change_requests.approve, "approve another person's change request")
    agreed.add_argument("--note", default="", help="a note; stored with the approval")
    agreed.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    no = command(
        wanted, "reject", change_requests.reject, "reject another person's change request", reason=True
    )
    back = command(
        wanted, "withdraw", change_requests.withdraw, "withdraw your own change request", reason=True
    )
    rebased = command(
        wanted, "rebase", change_requests.rebase, "rebase a change request on the newest revision"
    )
    made = command(wanted, "apply-request", change_requests.make, "apply an approved change request")
    for parser in (agreed, no, back, rebased, made):
        parser.add_argument("number", type=int, metavar="request")


def _add_breakers(wanted: Commands) -> None:
    command(wanted, "breakers", breakers.show, "list breakers and their overrides")
    trip = command(
        wanted, "trip", breakers.override, "force a breaker open, so that pods refuse every call", reason=True
    )
    trip.set_defaults(mode="forced_open")
    says = "override a breaker for a limited time"
    override = command(wanted, "override", breakers.override, says, reason=True)
    hold = command(wanted, "hold", breakers.override, says, reason=True, use="override")
    for parser in (override, hold):
        modes = ("forced_open", "forced_closed", "metrics_only", "disabled")
        parser.add_argument("--mode", required=True, choices=modes)
    extend = command(wanted, "extend", breakers.extend, "set a new end for an override", reason=True)
    end = command(
        wanted, "end", breakers.end, "end an override, so that the breaker decides again", reason=True
    )
    reset = command(wanted, "reset", breakers.reset, "close a breaker and clear its counts", reason=True)
    for parser in (trip, override, hold, extend, end, reset):
        parser.add_argument("dependency")
    for parser in (trip, override, hold, extend):
        _add_duration(parser, "the duration")
        parser.add_argument(
            "--ticket", metavar="URL", help="the ticket it belongs to: an address, or a key such as OPS-4821"
        )


def _add_backlogs(wanted: Commands) -> None:
    about = group(wanted, "backlog", "list backlogs, and return or delete their dead jobs")
    command(about, "list", backlogs.listing, "list backlogs, the fullest first")
    dead = command(about, "dead", backlogs.dead, "list the newest dead jobs of a dependency")
    back = command(
        about,
        "return",
        backlogs.give_back,
        "return dead jobs to the queue, with all their tries",
        reason=True,
    )
    gone = command(about, "delete", backlogs.delete, "delete dead jobs; it cannot be undone", reason=True)
    gone.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    for parser in (dead, back, gone):
        parser.add_argument("dependency")


def _add_quotas(wanted: Commands) -> None:
    put = command(
        group(wanted, "quota", "set a quota of a tenant or a tier"),
        "set",
        tenants.set_quota,
        "set a quota; values that are not given stay unchanged",
        reason=True,
    )
    put.add_argument("tenant", nargs="?", default="")
    put.add_argument("quota")
    put.add_argument("--tier", default="", help="set a tier's quota instead of a tenant's")
    add_limit_options(put, of=QUOTAS)
    put.add_argument("--if-version", type=int, metavar="N", help="fail if this is not the current version")
    put.add_argument(
        "--template",
        metavar="NAME",
        help="take all values that are not given from this template; '' for no template",
    )
    _add_duration(put, "remove the quota after this duration", default=0)


def _add_counters(wanted: Commands) -> None:
    clear = command(
        group(wanted, "counter", "clear the counter of a limit"),
        "clear",
        counters.clear,
        "clear a counter: the next call finds the limit empty; it cannot be undone",
        reason=True,
    )
    clear.add_argument("limit", help="the name of the quota or limit")
    clear.add_argument("--tenant", default="", help="the tenant whose quota it is")
    clear.add_argument("--dependency", default="", help="the dependency that the calls go to")
    for name in counters.BY:
        clear.add_argument(option(name), default="", metavar="VALUE", help="for a limit that counts by it")


def _add_tenants(wanted: Commands) -> None:
    about = group(wanted, "tenant", "print tenants and the settings that apply to them")
    command(about, "show", tenants.show, "print a tenant and its quotas").add_argument("tenant")
    command(
        about, "effective", tenants.effective, "print every value that applies to a tenant, and its source"
    ).add_argument("tenant")
    listed = command(about, "list", tenants.listing, "list tenants")
    listed.add_argument("--tier", default="", help="list only tenants of this tier")
    listed.add_argument("--prefix", default="", help="list only tenants whose id starts with this text")
    listed.add_argument("--search", default="", help="list only tenants whose id or name contains this text")


def _add_templates(wanted: Commands) -> None:
    about = group(wanted, "template", "print, set and delete limit templates")
    command(about, "list", limit_templates.listing, "list templates, and the number of limits that use each")
    command(about, "show", limit_templates.show, "print a template and the limits that use it").add_argument(
        "template"
    )
    put = command(
        about,
        "set",
        limit_templates.set_template,
        "set a template; values that are not given stay unchanged",
        reason=True,
    )
    add_limit_options(put)
    put.add_argument("--title", default=None, help="the purpose of the template")
    put.add_argument("--dry-run", action="store_true", help="only print what would change")
    gone = command(about, "remove", limit_templates.remove, "delete a template", reason=True)
    gone.add_argument(
        "--keep-values", action="store_true", help="the limits that use the template keep their values"
    )
    gone.add_argument(
        "--instead", default="", metavar="NAME", help="the limits that use the template use this one instead"
    )
    for parser in (put, gone):
        parser.add_argument("template")


def _add_models(wanted: Commands) -> None:
    about = group(wanted, "model", "print, set and delete models and their prices")
    command(about, "list", models.listing, "list models, and the price of each that applies")
    shown = command(about, "show", models.show, "print a model, and its prices by date")
    put = command(
        about, "set", models.set_model, "set a model; values that are not given stay unchanged", reason=True
    )
    put.add_argument(
        "--pool", default=None, help="the dependency its calls belong to; '' for that of the host"
    )
    put.add_argument(
        "--alias", action="append", default=None, metavar="NAME", help="another name in requests; repeatable"
    )
    price = command(
        about, "price", models.set_price, "add a price from a time on, or change one to come", reason=True
    )
    for name, what in models.AMOUNTS.items():
        option = f"--{name.replace('_', '-')}"
        price.add_argument(option, type=int, help=f"micro-USD per million tokens of {what}")
    for name, says in models.NUMBERS.items():
        price.add_argument(f"--{name.replace('_', '-')}", type=int, help=says)
    again = command(
        about, "reprice", models.reprice, "price past calls again, by the price given", reason=True
    )
    models.add_reprice_options(again)
    unprice = command(about, "remove-price", models.remove_price, "delete a price to come", reason=True)
    gone = command(about, "remove", models.remove, "delete a model and its prices", reason=True)
    for parser in (shown, put, price, unprice, gone):
        parser.add_argument("model")
    for parser in (price, unprice):
        parser.add_argument("start", help="a date, or a minute such as 2026-01-31T18:30Z")


def _add_budgets(wanted: Commands) -> None:
    about = group(wanted, "account", "print, set and delete accounts at vendors")
    command(about, "list", budgets.list_accounts, "list accounts and their pools")
    put = command(
        about,
        "set",
        budgets.set_account,
        "set an account; values that are not given stay unchanged",
        reason=True,
    )
    put.add_argument("--pool", action="append", metavar="NAME", help="a dependency of it; repeatable")
    put.add_argument("--host", action="append", metavar="NAME", help="a host of the vendor; repeatable")
    gone = command(about, "remove", budgets.remove_account, "delete an account without budgets", reason=True)
    for parser in (put, gone):
        parser.add_argument("account")
    about = group(wanted, "budget", "print, set, raise and delete budgets")
    command(about, "list", budgets.list_budgets, "list budgets")
    put = command(
        about,
        "set",
        budgets.set_budget,
        "set a budget; values not given stay unchanged",
        reason=True,
    )
    for name, what in {**budgets.OWNERS, **budgets.TEXTS}.items():
        put.add_argument(f"--{name.replace('_', '-')}", help=what)
    put.add_argument("--amount", type=int, help="in the unit of the measure: 1 USD is 1000000 micro_usd")
    put.add_argument("--period", choices=[*Period], help="the calendar period")
    put.add_argument("--warn-percent", type=int, help="warn when this much of it is spent; 0 for never")
    put.add_argument("--at-100", choices=[*AtSpent], help="what happens to calls when it is spent")
    more = command(about, "raise", budgets.raise_budget, "raise a budget for some minutes", reason=True)
    more.add_argument("--minutes", type=int, default=60, help="for how long; by default 60")
    clear = command(
        about,
        "clear",
        budgets.clear_budget,
        "clear what is spent of a budget; it cannot be undone",
        reason=True,
    )
    clear.add_argument("--tenant", default="", help="of the budget of a tier: the tenant that is counted")
    gone = command(about, "remove", budgets.remove_budget, "delete a budget", reason=True)
    for parser in (put, more, clear, gone):
        parser.add_argument("budget")
    more.add_argument("amount", type=int, help="the amount until then")


def _add_protection(wanted: Commands) -> None:
    about = group(wanted, "protection", "print and set what protects pods from overload")
    command(
        about, "show", protection.show, "print what protects pods from a dependency; without one, every pod"
    ).add_argument("dependency", nargs="?", default="")
    put = command(
        about,
        "set",
        protection.set_protection,
        "set what protects pods from a dependency; values that are not given stay unchanged",
        reason=True,
    )
    protection.add_call_options(put)
    pods = command(
        about,
        "set-pods",
        protection.set_pods,
        "set what protects every pod; values that are not given stay unchanged",
        reason=True,
    )
    protection.add_pod_options(pods)


def _add_fleet(wanted: Commands) -> None:
    says = "list pods, with mode and revision"
    command(wanted, "pods", fleet.pods, says)
    command(wanted, "servers", fleet.pods, says, use="pods")
    why = command(
        wanted,
        "explain",
        fleet.explain,
        "print why a request was refused, the limits of a tenant, or the reason why a breaker refuses",
    )
    about = why.add_mutually_exclusive_group(required=True)
    about.add_argument(
        "token", nargs="?", default="", help="the token of a refusal, or the number of a sample; - reads it"
    )
    about.add_argument("--tenant", default="")
    about.add_argument("--dependency", default="")
    _add_refusals(wanted)
    follow = command(
        wanted, "tail", fleet.tail, "print edits and changes of breakers as they happen, until Ctrl-C"
    )
    _add_duration(follow, "stop after this duration", default=0)
    follow.add_argument(
        "--every",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="the seconds between two requests (default: 1)",
    )


def _add_refusals(wanted: Commands) -> None:
    refused = command(
        wanted,
        "refusals",
        refusals.listing,
        "print how many requests were refused, by what, and samples of them",
    )
    for name in refusals.FILTERS:
        refused.add_argument(f"--{name}", default="", help=f"only of this {name}")
    refused.add_argument(
        "--last",
        type=breakers.duration,
        default=3600,
        metavar="TIME",
        help="how far to look back, such as 15m or 6h (default: 1h)",
    )
    refused.add_argument("--limit", type=int, default=20, help="the most samples to print (default: 20)")
    budgets = command(
        wanted,
        "error-budgets",
        refusals.error_budgets,
        "print how much of each error budget is left, and how fast it is spent",
    )
    only = budgets.add_mutually_exclusive_group()
    only.add_argument("--dependency", default="", help="only of this dependency")
    only.add_argument("--tenant", default="", help="only of this tenant")
