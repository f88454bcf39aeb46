"""Prints what the demo does now, and the seconds since its process began."""

import io
import sys
import time

BEGAN = time.monotonic()
#: A fresh database gets more than 100.
_EACH = 25


def say(what: str) -> None:
    sys.stdout.write(f"{time.monotonic() - BEGAN:5.1f} s  {what}\n")
    sys.stdout.flush()


class Migrations(io.StringIO):
    """The output of ``migrate``: one line for 25 migrations, and none for a database that is up to date."""

    def __init__(self) -> None:
        super().__init__()
        self.applied = 0

    def write(self, text: str) -> int:
        if " OK" in text:
            self.applied += 1
            if self.applied % _EACH == 0:
                say(f"Creating the tables: {self.applied} migrations are applied")
        return len(text)
