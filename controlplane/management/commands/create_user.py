import getpass
from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from controlplane.accounts.models import Role, User
from controlplane.accounts.people_audit import note_user
from controlplane.audit.actor import COMMAND_LINE


class Command(BaseCommand):
    help = "Creates a user with a role. Asks for the password, or reads it from standard input."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--role", choices=Role.values, default=Role.VIEWER.value)
        parser.add_argument("--password-stdin", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User(username=options["username"], role=options["role"])
        if User.objects.filter(username=user.username).exists():
            raise CommandError(f"User {user.username!r} already exists.")
        password = input() if options["password_stdin"] else getpass.getpass("Password: ")
        try:
            user.full_clean(exclude=["password"])
            validate_password(password, user)
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        user.set_password(password)
        with transaction.atomic():
            user.save()
            reason = "Created on the command line."
            note_user("user.created", user, COMMAND_LINE, reason, after={"role": user.role})
        self.stdout.write(f"{user.username} may log in as {user.role}.")
