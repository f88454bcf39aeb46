"""A manifest beside each dump, and its comparison with the database after a restore."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from allauth.mfa.models import Authenticator
from django.db import connection, models, transaction
from django.db.migrations.loader import MigrationLoader
from msgspec import Struct

from controlplane.accounts.models import AgentToken, ApiToken, User
from controlplane.alerts.models import Incident, Mute, Receiver, Route
from controlplane.audit.chain import Head, verify
from controlplane.audit.models import ChainHead
from controlplane.encryption import fingerprints
from controlplane.installation import COMMAND
from controlplane.phrases import count, listed
from controlplane.policies.models import (
    Dependency,
    Environment,
    SubjectLimit,
    Tenant,
    TenantQuota,
    Tier,
    TierQuota,
    VendorLimit,
)
from controlplane.policies.revision_rows import Revision
from controlplane.schedules.models import Schedule
from controlplane.spending.models import Budget, Price

#: Rows that only an edit adds or removes. So their number follows from the last entry of each audit chain.
_EDITED: Mapping[str, type[models.Model]] = {
    "agent tokens": AgentToken,
    "API tokens": ApiToken,
    "budgets": Budget,
    "dependencies": Dependency,
    "mutes": Mute,
    "people": User,
    "prices": Price,
    "quotas of tenants": TenantQuota,
    "quotas of tiers": TierQuota,
    "receivers": Receiver,
    "routes": Route,
    "schedules": Schedule,
    "second factors": Authenticator,
    "subject limits": SubjectLimit,
    "tenants": Tenant,
    "tiers": Tier,
    "vendor limits": VendorLimit,
}
#: Other rows that people would miss.
_COUNTED: Mapping[str, type[models.Model]] = {"incidents": Incident, "revisions": Revision}
_SERVER_VERSION = "SELECT current_setting('server_version')"
_TRIGGERS = "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal"


class EnvironmentHead(Struct, frozen=True, kw_only=True):
    epoch: int
    revision: int


class Manifest(Struct, frozen=True, kw_only=True):
    """The state of a database at one moment. Contains no secret."""

    taken_at: datetime
    #: The version of the server, as it names itself.
    postgres: str
    #: App -> its last migration.
    migrations: dict[str, str]
    #: The fingerprint of ``FUSEBOARD_SECRET_KEY`` says whether a key is that one, and nothing about it.
    key_fingerprint: str
    environments: dict[str, EnvironmentHead]
    #: The last entry of each chain, as ``verify_audit`` prints it.
    audit: list[str]
    #: Triggers guard the audit.
    triggers: int
    rows: dict[str, int]

    def __post_init__(self) -> None:
        """Raises ``ValueError`` if an entry of ``audit`` is none."""
        self.heads()

    def heads(self) -> list[Head]:
        return [Head.parse(head) for head in self.audit]


def read_manifest() -> Manifest:
    """Everything as of one moment, so it must not run inside a transaction, or while migrations wait."""
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(_SERVER_VERSION)
        [postgres] = cursor.fetchone()
        cursor.execute(_TRIGGERS)
        [triggers] = cursor.fetchone()
        return Manifest(
            taken_at=datetime.now(UTC),
            postgres=postgres,
            migrations=_last_migrations(),
            key_fingerprint=fingerprints()[0],
            environments={
                row.slug: EnvironmentHead(epoch=row.epoch, revision=row.revision)
                for row in Environment.objects.order_by("slug")
            },
            audit=[str(row) for row in ChainHead.objects.order_by("environment")],
            triggers=triggers,
            rows={words: model._default_manager.count() for words, model in {**_EDITED, **_COUNTED}.items()},
        )


def waiting_migrations() -> int:
    """How many migrations of this release the database lacks. Its tables cannot be read before they run."""
    loader = MigrationLoader(connection)
    return len((loader.disk_migrations or {}).keys() - (loader.applied_migrations or {}).keys())


def _last_migrations() -> dict[str, str]:
    applied = MigrationLoader(connection).applied_migrations or {}
    return dict(sorted(applied))


@dataclass(frozen=True)
class Difference:
    """The differences of a restored database from its manifest, and what to do."""

    what: str
    then: str

    def __str__(self) -> str:
        return f"{self.what} {self.then}"


@dataclass(frozen=True)
class Verified:
    differences: list[Difference]
    #: The sentences about what agrees, and what to do next.
    notes: list[str]


def verify_restore(manifest: Manifest) -> Verified:
    """Compare the database with the manifest of the dump that it was restored from."""
    differences = list(_migrations(manifest))
    if waiting_migrations():
        return Verified(differences, [])
    now = read_manifest()
    good, broken = verify(manifest.heads())
    differences += [
        *_key(manifest),
        *_environments(manifest, now),
        *(
            Difference(
                f"The audit differs: {one}.",
                "Restore another dump. If you must use this one, find out first who changed it.",
            )
            for one in broken
        ),
        *_triggers(manifest, now),
    ]
    later = sorted({str(head) for head in good} - set(manifest.audit))
    differences += _rows(manifest, now, exactly=not later and not broken)
    notes = [] if broken else [f"The audit is intact: {count(len(good), 'chain')}."]
    if later:
        notes.append(
            f"{count(len(later), 'chain')} of the audit went on after the manifest was written, so the"
            " numbers of rows can differ from it."
        )
    return Verified(differences, [*notes, *_next_steps(manifest, now)])


def _migrations(manifest: Manifest) -> Iterator[Difference]:
    present = _last_migrations()
    lacking = [
        f"{app} {name}"
        for app, name in manifest.migrations.items()
        # Names begin with their number.
        if present.get(app, "") < name
    ]
    if lacking:
        yield Difference(
            f"The database lacks migrations that the dump had: {listed(lacking)}.",
            "Restore into an empty database, and read what pg_restore prints.",
        )
    loader = MigrationLoader(connection)
    applied, known = set(loader.applied_migrations or {}), set(loader.disk_migrations or {})
    replaced = {one for migration in loader.disk_migrations.values() for one in migration.replaces}
    unknown = sorted(f"{app} {name}" for app, name in applied - known - replaced)
    if unknown:
        yield Difference(
            f"This release does not know migrations of the database: {listed(unknown)}.",
            "Install the release that wrote the dump, or a newer one.",
        )
    # An incomplete database must be restored again, not migrated.
    if (waiting := waiting_migrations()) and not lacking:
        yield Difference(
            f"The dump is of an earlier release: {count(waiting, 'migration')} must still run.",
            f"Run {COMMAND} migrate.",
        )


def _key(manifest: Manifest) -> Iterator[Difference]:
    accepted = fingerprints()
    if manifest.key_fingerprint not in accepted:
        yield Difference(
            "FUSEBOARD_SECRET_KEY is another key than that of the dump, so second factors and URLs of"
            " receivers cannot be read.",
            "Set the key of that time, or add it to FUSEBOARD_SECRET_KEY_FALLBACKS. If it is lost, people"
            " must add both again.",
        )


def _environments(manifest: Manifest, now: Manifest) -> Iterator[Difference]:
    for name, then in manifest.environments.items():
        head = now.environments.get(name)
        if head is None:
            yield Difference(f"The environment {name} is missing.", "Restore a later dump.")
        elif (head.epoch, head.revision) < (then.epoch, then.revision):
            yield Difference(
                f"{name} is at epoch {head.epoch}, revision {head.revision}; the manifest says epoch"
                f" {then.epoch}, revision {then.revision}.",
                "The dump is older than the manifest: restore the dump that belongs to it.",
            )


def _triggers(manifest: Manifest, now: Manifest) -> Iterator[Difference]:
    if now.triggers < manifest.triggers:
        yield Difference(
            f"The database has {now.triggers} of {manifest.triggers} triggers. They guard the audit.",
            "Restore the whole dump into an empty database, and read what pg_restore prints.",
        )


def _rows(manifest: Manifest, now: Manifest, *, exactly: bool) -> Iterator[Difference]:
    for words, then in manifest.rows.items():
        found = now.rows.get(words, then)
        differs = found != then if exactly and words in _EDITED else not found and then
        if differs:
            yield Difference(
                f"The number of {words} is {found}; the manifest says {then}.",
                "Restore the whole dump into an empty database, and read what pg_restore prints.",
            )


def _next_steps(manifest: Manifest, now: Manifest) -> Iterator[str]:
    if manifest.key_fingerprint in fingerprints()[1:]:
        yield (
            "The key of the dump is one of FUSEBOARD_SECRET_KEY_FALLBACKS. Before you remove it:"
            f" {COMMAND} renew_secrets"
        )
    for name, head in now.environments.items():
        then = manifest.environments.get(name)
        if then is not None and head.epoch > then.epoch:
            yield f"{name} has begun epoch {head.epoch}."
        else:
            yield (
                f"Next, while Redis is up and before the first edit: {COMMAND} republish {name}"
                f' --new-epoch --reason "restored the dump of {manifest.taken_at:%Y-%m-%d %H:%M} UTC"'
            )
