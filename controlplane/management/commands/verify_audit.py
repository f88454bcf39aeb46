"""Check the audit for tampering: ``python manage.py verify_audit``."""

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.audit.chain import Head, verify


def _head(text: str) -> Head:
    try:
        return Head.parse(text)
    except ValueError as error:
        raise ArgumentTypeError("must be environment:sequence:hash, as this command prints it") from error


class Command(BaseCommand):
    help = (
        "Checks every audit entry against the previous one and names the first that was altered. Prints the"
        " head of every chain: keep it elsewhere, and pass it to --anchor later."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--anchor",
            action="append",
            default=[],
            type=_head,
            metavar="HEAD",
            help="a head that was printed or logged earlier; may be given more than once",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        good, broken = verify(options["anchor"])
        for head in good:
            self.stdout.write(f"ok {head}")
        if broken:
            raise CommandError("\n".join(f"BROKEN {found}" for found in broken))
