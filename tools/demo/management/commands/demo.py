"""Run the whole product on this machine: ``make demo``; ``make demo CHECK=1`` checks it."""

import os
import signal
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from tools.demo.model_scenario import ASSISTANT
from tools.demo.processes import DidNotStart
from tools.demo.progress import Migrations, say
from tools.demo.scenario import DEPENDENCIES, FLAKY
from tools.demo.seed import seed
from tools.demo.services import Demo
from tools.demo.shutdown import clean_exit
from tools.demo.story import BASE, MORE, Chapter, CheckFailed, Checkpoint, CheckSkipped

#: The dashboard's port, if it is free.
WEB_PORT = 8000

#: Calls per second of each pod.
CALLS_PER_S = 30.0

#: The vendor fails for SPELL_S of every PERIOD_S, in seconds.
SPELL_S, PERIOD_S = 25, 90

_LATENCY_MS = next(played.latency_ms for played in DEPENDENCIES if played.name == FLAKY)

_ABOUT_TRAFFIC = (
    f"Three pods serve about 90 calls/s of seven tenants. {FLAKY} fails for {SPELL_S} s in every "
    f"{PERIOD_S} s: watch its breaker open, probe and close. A fourth pod, {ASSISTANT}, asks "
    "language models: see Limits, Costs."
)
_ABOUT_LIGHT = "No pod runs and nothing calls: start your own pod."


class Command(BaseCommand):
    help = "Runs the whole product on this machine until Ctrl-C; --check runs the checkpoints and ends."

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--check", action="store_true", help="run the base checkpoints, then stop")
        what.add_argument("--check-all", action="store_true", help="run every checkpoint, then stop")
        what.add_argument(
            "--light",
            action="store_true",
            help="start the control plane alone: no pods, no vendor, no traffic",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        checkpoints = BASE + MORE if options["check_all"] else BASE if options["check"] else ()
        # SIGINT too: a shell script starts what it runs in the background with SIGINT ignored.
        for wanted in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(wanted, _like_ctrl_c)
        self.began = time.monotonic()
        # Its lines are needed for a new database only, and with them it also looks for changes of models.
        new = not connection.introspection.table_names()
        call_command("migrate", stdout=Migrations(), verbosity=int(new), interactive=False)
        say("Setting up the configuration, the people and the past of the demo")
        folder = Path(os.environ["FUSEBOARD_DATA_DIR"])
        web_port = 0 if checkpoints else WEB_PORT
        demo = Demo(folder, seed(), per_pod=CALLS_PER_S, web_port=web_port, light=options["light"])
        try:
            if checkpoints:
                self._run_checkpoints(demo, checkpoints)
            else:
                self._run_until_stopped(demo, light=options["light"])
        except KeyboardInterrupt:
            self.stdout.write("\nStopping ...")
            if checkpoints:
                raise SystemExit(130) from None
        finally:
            # The processes are already being stopped; a second Ctrl-C must not leave half of them running.
            for wanted in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(wanted, signal.SIG_IGN)
            demo.close()

    def _run_until_stopped(self, demo: Demo, *, light: bool) -> None:
        """Run until Ctrl-C; the vendor fails from time to time, and a process that ends is restarted."""
        try:
            demo.open(say)
        except DidNotStart as failure:
            raise CommandError(str(failure)) from failure
        self._print_addresses(demo, _ABOUT_LIGHT if light else _ABOUT_TRAFFIC)
        opened, ill = time.monotonic(), False
        while True:
            time.sleep(0.5)
            position = (time.monotonic() - opened) % PERIOD_S
            if not light and ill != (position >= PERIOD_S - SPELL_S):
                ill = not ill
                demo.switch(FLAKY, failure_percent=100 if ill else 0, latency_ms=_LATENCY_MS)
                self.stdout.write(
                    f"{time.strftime('%H:%M:%S')}  {FLAKY} {'fails' if ill else 'is well again'}"
                )
            for process in demo.processes.ended():
                log = demo.processes.logs / f"{process.name}.log"
                self.stdout.write(f"{process.name} ended unexpectedly and is restarted; see {log}")
                demo.processes.begin(process.name)

    def _print_addresses(self, demo: Demo, about: str) -> None:
        logins = "".join(f"    {name:<10}{password}\n" for name, password in demo.seeded.logins.items())
        self.stdout.write(
            f"\nFuseboard started after {time.monotonic() - self.began:.1f} s:\n\n"
            f"    {self.style.SUCCESS(demo.url('web') + '/')}\n\n"
            f"Log in as (name, password):\n\n{logins}\n"
            f"{about}\n"
            f"To run your own pod, or `fuseboard doctor`: set -a; . {demo.write_pod_environment()}; set +a\n"
            "For `fuseboard ctl`, also create a token: python manage.py create_api_token me --role admin\n"
            f"Logs: {demo.processes.logs}. Stop with Ctrl-C.\n"
        )

    def _run_checkpoints(self, demo: Demo, checkpoints: tuple[Checkpoint, ...]) -> None:
        """Run every checkpoint in turn, even after one has failed. Exit with an error if any failed."""
        failed, skipped = [], 0
        try:
            demo.open(say)
        except DidNotStart as failure:
            self._say("FAIL", "up", str(failure))
            raise CommandError(f"The demo did not start; logs: {demo.processes.logs}") from failure
        count = len(demo.processes.by_name)
        self._say("ok", "up", f"{count} processes and 3 embedded servers answer after {self._elapsed()}")
        chapter = Chapter(demo, os.environ["FUSEBOARD_REDIS_URL"])
        for checkpoint in checkpoints:
            try:
                self._say("ok", checkpoint.name, checkpoint.tell(chapter))
            except Exception as error:
                if checkpoint.may_skip and isinstance(error, CheckSkipped):
                    self._say("skip", checkpoint.name, str(error))
                    skipped += 1
                    continue
                reason = str(error) if isinstance(error, CheckFailed) else repr(error)
                self._say("FAIL", checkpoint.name, reason)
                failed.append(checkpoint.name)
        chapter.close()
        try:
            self._say("ok", "clean-exit", clean_exit(demo))
        except CheckFailed as error:
            self._say("FAIL", "clean-exit", str(error))
            failed.append("clean-exit")
        count = len(checkpoints) + 2
        passed, left_out = count - len(failed) - skipped, f", {skipped} skipped" if skipped else ""
        self.stdout.write(f"{passed} of {count} checkpoints{left_out}, {self._elapsed()}")
        if failed:
            raise CommandError(f"Failed: {', '.join(failed)}. Logs: {demo.processes.logs}")

    def _say(self, verdict: str, name: str, evidence: str) -> None:
        self.stdout.write(f"{verdict} {name}: {evidence}")
        self.stdout.flush()

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self.began:.1f} s"


def _like_ctrl_c(number: int, frame: object) -> None:
    raise KeyboardInterrupt
