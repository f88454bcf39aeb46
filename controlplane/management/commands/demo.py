"""Run the whole product on this machine: ``make demo``; ``make demo CHECK=1`` has it tell its story."""

import os
import signal
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from controlplane.demo.processes import DidNotStart
from controlplane.demo.scenario import DEPENDENCIES, FLAKY
from controlplane.demo.seed import seed
from controlplane.demo.services import Stage
from controlplane.demo.shutdown import clean_exit
from controlplane.demo.story import BASE, MORE, Checkpoint, Telling, Untrue

#: The dashboard's, when nobody else has it.
WEB_PORT = 8000

#: Of each pod.
CALLS_PER_S = 30.0

#: The vendor fails for this long, in every period, both in seconds.
SPELL_S, PERIOD_S = 25, 90

_LATENCY_MS = next(played.latency_ms for played in DEPENDENCIES if played.name == FLAKY)


class Command(BaseCommand):
    help = "Runs the whole product on this machine until Ctrl-C; --check tells its story and ends."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="tell the base story, then stop")
        parser.add_argument("--check-all", action="store_true", help="tell every checkpoint, then stop")

    def handle(self, *args: Any, **options: Any) -> None:
        checkpoints = BASE + MORE if options["check_all"] else BASE if options["check"] else ()
        for wanted in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(wanted, _like_ctrl_c)
        self.began = time.monotonic()
        call_command("migrate", verbosity=0, interactive=False)
        folder = Path(os.environ["FUSEBOARD_DATA_DIR"])
        stage = Stage(folder, seed(), per_pod=CALLS_PER_S, web_port=0 if checkpoints else WEB_PORT)
        try:
            if checkpoints:
                self._tell(stage, checkpoints)
            else:
                self._perform(stage)
        except KeyboardInterrupt:
            self.stdout.write("\nStopping ...")
            if checkpoints:
                raise SystemExit(130) from None
        finally:
            # The processes are being stopped already; a second Ctrl-C must not leave half of them.
            for wanted in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(wanted, signal.SIG_IGN)
            stage.close()

    def _perform(self, stage: Stage) -> None:
        """Run until Ctrl-C; the vendor has its bad spells, and whoever falls is started again."""
        self.stdout.write(
            "Starting Postgres, two Valkeys, web, gateway, worker, beat, the vendor, three pods ..."
        )
        try:
            stage.open()
        except DidNotStart as failure:
            raise CommandError(str(failure)) from failure
        self._say_where(stage)
        opened, ill = time.monotonic(), False
        while True:
            time.sleep(0.5)
            position = (time.monotonic() - opened) % PERIOD_S
            if ill != (position >= PERIOD_S - SPELL_S):
                ill = not ill
                stage.switch(FLAKY, failure_percent=100 if ill else 0, latency_ms=_LATENCY_MS)
                self.stdout.write(
                    f"{time.strftime('%H:%M:%S')}  {FLAKY} {'fails' if ill else 'is well again'}"
                )
            for actor in stage.troupe.fallen():
                log = stage.troupe.logs / f"{actor.name}.log"
                self.stdout.write(f"{actor.name} ended by itself and is started again; see {log}")
                stage.troupe.begin(actor.name)

    def _say_where(self, stage: Stage) -> None:
        logins = "".join(f"    {name:<10}{password}\n" for name, password in stage.seeded.logins.items())
        self.stdout.write(
            f"\nFuseboard runs after {time.monotonic() - self.began:.1f} s:\n\n"
            f"    {self.style.SUCCESS(stage.url('web') + '/')}\n\n"
            f"Log in as (name, password):\n\n{logins}\n"
            f"Three pods serve some 90 calls/s of seven tenants. {FLAKY} fails for {SPELL_S} s in every "
            f"{PERIOD_S} s: watch its breaker open, probe and close.\n"
            f"A pod of your own, or `fuseboard doctor`: set -a; . {stage.write_pod_environment()}; set +a\n"
            "For `fuseboard ctl` also a token: python manage.py create_api_token me --role admin\n"
            f"Logs: {stage.troupe.logs}. Stop with Ctrl-C.\n"
        )

    def _tell(self, stage: Stage, checkpoints: tuple[Checkpoint, ...]) -> None:
        """Each checkpoint in turn, whether or not the one before it was true. Fails when one was not."""
        failed = []
        try:
            stage.open()
        except DidNotStart as failure:
            self._say("FAIL", "up", str(failure))
            raise CommandError(f"The demo did not start; logs: {stage.troupe.logs}") from failure
        count = len(stage.troupe.actors)
        self._say("ok", "up", f"{count} processes and 3 embedded servers answer after {self._elapsed()}")
        telling = Telling(stage, os.environ["FUSEBOARD_REDIS_URL"])
        for checkpoint in checkpoints:
            try:
                self._say("ok", checkpoint.name, checkpoint.tell(telling))
            except Exception as error:
                reason = str(error) if isinstance(error, Untrue) else repr(error)
                self._say("FAIL", checkpoint.name, reason)
                failed.append(checkpoint.name)
        telling.close()
        try:
            self._say("ok", "clean-exit", clean_exit(stage))
        except Untrue as error:
            self._say("FAIL", "clean-exit", str(error))
            failed.append("clean-exit")
        self.stdout.write(
            f"{len(checkpoints) + 2 - len(failed)} of {len(checkpoints) + 2} checkpoints, {self._elapsed()}"
        )
        if failed:
            raise CommandError(f"Not true: {', '.join(failed)}. Logs: {stage.troupe.logs}")

    def _say(self, verdict: str, name: str, evidence: str) -> None:
        self.stdout.write(f"{verdict} {name}: {evidence}")
        self.stdout.flush()

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self.began:.1f} s"


def _like_ctrl_c(number: int, frame: object) -> None:
    raise KeyboardInterrupt
