"""The configuration of an environment. Only ``controlplane.editing.edits`` changes it."""

from collections.abc import Iterable

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q

from controlplane.policies.drafts import Draft as Draft
from controlplane.policies.limits import FollowingColumns, LimitColumns, QuotaColumns
from controlplane.policies.revision_rows import Change as Change
from controlplane.policies.revision_rows import Revision as Revision
from controlplane.spending.models import Account, Budget, Model
from fuseboard.contract.descriptors import DOMAIN_RULE, MAX_DOMAIN_NAME, is_domain
from fuseboard.contract.limit_fields import CALLERS
from fuseboard.contract.policy import MAX_LATENCY_RISE, MAX_STORE_WAIT_MS, MAX_WAIT_MS
from fuseboard.contract.words import is_slug, is_subject


def check_slug(name: str) -> None:
    if not is_slug(name):
        raise ValidationError(
            "Use 1 to 64 letters, digits, dots, dashes or underscores,"
            " beginning and ending with a letter or digit."
        )


def check_domain(name: str) -> None:
    if not is_domain(name):
        raise ValidationError(DOMAIN_RULE)


def check_subject(key: str) -> None:
    if not is_subject(key):
        raise ValidationError("Use 1 to 200 characters without control characters.")


class Environment(models.Model):
    """A separate line of revisions, with separate keys in Redis and separate tokens."""

    slug = models.CharField(primary_key=True, max_length=64, validators=[check_slug])
    #: Increases when the database is restored, so that a lower revision can win once.
    epoch = models.BigIntegerField(default=1)
    #: The number of the last edit. The row lock of its UPDATE makes commits follow revisions.
    revision = models.BigIntegerField(default=0)
    #: The tier of unregistered tenants.
    default_tier = models.ForeignKey("Tier", on_delete=models.PROTECT, related_name="+")
    #: See ``fuseboard.contract.policy.Tuning``. Missing fields have its defaults.
    tuning = models.JSONField(default=dict, blank=True)
    #: See ``fuseboard.contract.protection.PodProtection``. Empty for none.
    protection = models.JSONField(default=dict, db_default={}, blank=True)
    #: Until then, edits are refused; overrides of breakers are not. Null, or a time in the past, for none.
    frozen_until = models.DateTimeField(null=True, blank=True)
    frozen_by = models.CharField(max_length=200, blank=True, default="", db_default="")
    frozen_reason = models.CharField(max_length=500, blank=True, default="", db_default="")
    #: Changes of alert rules by an admin: rule -> field -> value.
    alert_rules = models.JSONField(default=dict, db_default={}, blank=True)

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=Q(epoch__gte=1, revision__gte=0), name="environment_head_not_negative"
            ),
        )

    def __str__(self) -> str:
        return self.slug


class Template(LimitColumns):
    """Values that limits of the environment follow. One revision changes it and all of them."""

    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="templates")
    title = models.CharField(max_length=200, blank=True)
    #: Increases with every edit.
    version = models.IntegerField(default=1)

    class Meta(LimitColumns.Meta):
        constraints = (
            *LimitColumns.Meta.constraints,
            models.UniqueConstraint(fields=["environment", "name"], name="template_once"),
        )

    def __str__(self) -> str:
        return self.name


class Tier(models.Model):
    """A named class of tenants with default quotas, which a tenant can override."""

    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="tiers")
    name = models.CharField(max_length=64, validators=[check_slug])
    title = models.CharField(max_length=200, blank=True)
    #: 0 to 100. Under overload, the lowest is shed first.
    priority = models.IntegerField(default=50)
    #: A request waits this long for a refusal that ends in time, unless its caller says otherwise.
    wait_ms = models.IntegerField(default=0, db_default=0)
    #: Increases with every edit of the tier or its quotas.
    version = models.IntegerField(default=1)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["environment", "name"], name="tier_once"),
            models.CheckConstraint(condition=Q(priority__range=(0, 100)), name="tier_priority_range"),
            models.CheckConstraint(condition=Q(wait_ms__range=(0, MAX_WAIT_MS)), name="tier_wait_range"),
        )

    def __str__(self) -> str:
        return self.name


class TierQuota(QuotaColumns):
    tier = models.ForeignKey(Tier, on_delete=models.CASCADE, related_name="quotas")

    class Meta(QuotaColumns.Meta):
        constraints = (
            *QuotaColumns.Meta.constraints,
            models.UniqueConstraint(fields=["tier", "name"], name="tier_quota_once"),
        )

    def __str__(self) -> str:
        return f"{self.tier}/{self.name}"


class Tenant(models.Model):
    """A customer whose use is limited."""

    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="tenants")
    key = models.CharField(max_length=200, validators=[check_subject])
    title = models.CharField(max_length=200, blank=True)
    tier = models.ForeignKey(Tier, on_delete=models.PROTECT, related_name="tenants")
    #: The tenant it belongs to, whose quotas its requests spend too; empty for none.
    parent = models.CharField(max_length=200, blank=True, default="", db_default="")
    suspended = models.BooleanField(default=False)
    #: A tombstone, so that the removal is published, too.
    deleted = models.BooleanField(default=False)
    #: The revision of the last edit. Publishing takes tenants above the revision in Redis.
    changed_revision = models.BigIntegerField()
    version = models.IntegerField(default=1)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["environment", "key"], name="tenant_once"),
            models.CheckConstraint(condition=~Q(key=""), name="tenant_key_not_empty"),
        )
        indexes = (
            models.Index(fields=["environment", "changed_revision"], name="tenant_by_change"),
            models.Index(
                fields=["environment", "parent", "key"], condition=~Q(parent=""), name="tenant_of_parent"
            ),
            models.Index(fields=["tier", "key"], condition=Q(deleted=False), name="tenant_of_tier"),
            # Contains what a search reads, so that it does not visit the rows.
            models.Index(
                fields=["environment", "key"],
                include=["title", "tier", "id"],
                condition=Q(deleted=False),
                name="tenant_searched",
            ),
        )

    def __str__(self) -> str:
        return self.key


class TenantQuota(QuotaColumns):
    """Replaces the tier's quota with the same name."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="quotas")
    #: When a temporary quota ends; null for a permanent one.
    expires_at = models.DateTimeField(null=True, blank=True)
    #: Columns of the tenant's quota that applies afterwards; null for the tier's.
    returns_to = models.JSONField(null=True, blank=True)
    #: When it was announced that it ends soon.
    announced_at = models.DateTimeField(null=True, blank=True)

    class Meta(QuotaColumns.Meta):
        constraints = (
            *QuotaColumns.Meta.constraints,
            models.UniqueConstraint(fields=["tenant", "name"], name="tenant_quota_once"),
            models.CheckConstraint(
                condition=Q(returns_to__isnull=True) | Q(expires_at__isnull=False),
                name="tenantquota_returns_when_it_expires",
            ),
        )
        indexes = (
            models.Index(
                fields=["expires_at"], condition=Q(expires_at__isnull=False), name="tenantquota_expiring"
            ),
            models.Index(fields=["template"], condition=~Q(template=""), name="tenantquota_following"),
        )

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


class Runbook(models.Model):
    """Steps to take when an alert fires, in Markdown. Read texts with ``runbook_texts``.

    A row with a source applies the text of the release. Its own text is what a release shipped before: it
    is displayed when the release no longer ships one.
    """

    slug = models.CharField(primary_key=True, max_length=64, validators=[check_slug])
    title = models.CharField(max_length=200)
    body = models.TextField()
    #: The source file relative to docs/; empty if it was written in the application.
    source = models.CharField(max_length=200, blank=True)
    #: The number of the newest revision; 0 if it was never edited.
    version = models.PositiveIntegerField(default=0, db_default=0)
    #: The shipped text with which the last editor compared this one; empty if the release had none.
    default_title = models.CharField(max_length=200, blank=True, default="", db_default="")
    default_body = models.TextField(blank=True, default="", db_default="")

    def __str__(self) -> str:
        return self.title


class RunbookRevision(models.Model):
    """A text of a runbook as it was saved; number 0 is the text before the first edit."""

    runbook = models.ForeignKey(Runbook, on_delete=models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    title = models.CharField(max_length=200)
    body = models.TextField()
    #: Whether the runbook applied the text of the release from then on.
    shipped = models.BooleanField(default=False)
    by = models.CharField(max_length=200, blank=True)
    at = models.DateTimeField()
    reason = models.CharField(max_length=500)

    class Meta:
        constraints = (models.UniqueConstraint(fields=["runbook", "number"], name="runbook_revision_number"),)

    def __str__(self) -> str:
        return f"{self.runbook_id} {self.number}"


class Kind(models.TextChoices):
    """The kind of a dependency. It selects the initial policy of its breaker, see ``BREAKER_PRESETS``."""

    LLM = "llm", "LLM API"
    EXTERNAL = "external", "External API"
    DATABASE = "database", "Database"
    INTERNAL = "internal", "Internal service"


#: Kind -> breaker columns that differ from the model's defaults.
BREAKER_PRESETS: dict[str, dict[str, int]] = {
    # Calls of language models are few and long: the last 10 of ten minutes count.
    Kind.LLM: {
        "consecutive_failures": 3,
        "open_ms": 60_000,
        "slow_ms": 30_000,
        "slow_percent": 50,
        "minimum_calls": 10,
        "window_calls": 10,
        "window_s": 600,
    },
    Kind.EXTERNAL: {"consecutive_failures": 5, "open_ms": 60_000, "slow_ms": 10_000, "slow_percent": 50},
    Kind.DATABASE: {"consecutive_failures": 3, "open_ms": 30_000, "slow_ms": 5_000, "slow_percent": 50},
    Kind.INTERNAL: {"consecutive_failures": 5, "open_ms": 30_000, "slow_ms": 5_000, "slow_percent": 50},
}

_WINDOW = ("minimum_calls", "window_calls", "window_s")


def breaker_preset(kind: str, given: Iterable[str] = ()) -> dict[str, int]:
    """Return the columns of the preset. ``given``: columns that replace some of them.

    Who gives a window or a minimum without a number of calls means a window of time.
    """
    found, given = dict(BREAKER_PRESETS.get(kind, {})), set(given)
    if "window_calls" not in given and given.intersection(_WINDOW):
        found = {column: value for column, value in found.items() if column not in _WINDOW}
    return found


MAX_MS = 400 * 86_400_000

#: Column of ``Dependency`` -> least and greatest value, as in ``fuseboard.contract.policy``.
BREAKER_RANGES: dict[str, tuple[int, int]] = {
    "consecutive_failures": (0, 1_000_000_000),
    "failure_percent": (1, 100),
    "slow_percent": (1, 100),
    "slow_ms": (1, MAX_MS),
    "minimum_calls": (1, 1_000_000_000),
    "window_s": (1, 600),
    "open_ms": (1, MAX_MS),
    "open_max_ms": (1, MAX_MS),
    "probes": (1, 100),
    "probe_lease_ms": (1, MAX_MS),
    "successes_to_close": (1, 100),
    "slow_start_ms": (0, 600_000),
    "minimum_servers": (1, 100),
    "window_calls": (0, 1_000_000_000),
}
#: The bounds of the parts of a streamed answer, in milliseconds; 0 for none.
STREAM_COLUMNS = ("first_part_ms", "between_parts_ms")
MAX_PART_MS = 600_000
#: Column -> its largest value. At 0, which documents leave out, pods use what they use without it.
OPTIONAL_COLUMNS = {
    **dict.fromkeys(STREAM_COLUMNS, MAX_PART_MS),
    "store_wait_ms": MAX_STORE_WAIT_MS,
    "latency_rise_percent": MAX_LATENCY_RISE,
}
#: Kind -> its times. Calls of the others are seldom streamed, and cannot wait long for Redis.
TIME_PRESETS: dict[str, dict[str, int]] = {
    Kind.LLM: {"first_part_ms": 30_000, "between_parts_ms": 60_000, "store_wait_ms": 250},
}
OPEN_TOO_SHORT = "The longest open time must not be shorter than the first."
WINDOW_TOO_FEW = "Use 0, or at least minimum_calls: fewer calls would never open the breaker."


class Dependency(models.Model):
    """Something called over the network, with the policy of its breaker."""

    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="dependencies")
    name = models.CharField(max_length=64, validators=[check_slug])
    title = models.CharField(max_length=200, blank=True)
    kind = models.CharField(max_length=16, choices=Kind, default=Kind.EXTERNAL)
    owner = models.CharField(max_length=200, blank=True)
    #: The advice to callers while the breaker is open.
    fallback_note = models.CharField(max_length=500, blank=True)
    timeout_ms = models.BigIntegerField(default=30_000)
    #: A call waits this long for a refusal that ends in time, unless its caller says otherwise.
    wait_ms = models.IntegerField(default=0, db_default=0)
    #: The longest time until the first part of a stream, and between two, instead of the timeout; 0 for none.
    first_part_ms = models.IntegerField(default=0, db_default=0)
    between_parts_ms = models.IntegerField(default=0, db_default=0)
    #: A call waits this long for Redis before its pod decides alone; 0 for the deadline of the fleet.
    store_wait_ms = models.IntegerField(default=0, db_default=0)
    #: Limits of calls at once fall while calls take so much longer than their lowest time; 0 for never.
    latency_rise_percent = models.IntegerField(default=0, db_default=0)
    #: See ``fuseboard.contract.protection.CallProtection``. Empty for none.
    protection = models.JSONField(default=dict, db_default={}, blank=True)
    runbook = models.ForeignKey(
        Runbook, on_delete=models.SET_NULL, null=True, blank=True, related_name="dependencies"
    )
    #: The revision of the last reset by a person.
    reset_revision = models.BigIntegerField(default=0)
    version = models.IntegerField(default=1)

    consecutive_failures = models.IntegerField(default=5)
    failure_percent = models.IntegerField(default=50)
    #: The policy document has another default, 100: a pod reads it where the field is omitted.
    slow_percent = models.IntegerField(default=50)
    slow_ms = models.BigIntegerField(default=10_000)
    minimum_calls = models.IntegerField(default=20)
    window_s = models.IntegerField(default=30)
    open_ms = models.BigIntegerField(default=60_000)
    open_max_ms = models.BigIntegerField(default=600_000)
    probes = models.IntegerField(default=3)
    probe_lease_ms = models.BigIntegerField(default=30_000)
    successes_to_close = models.IntegerField(default=2)
    slow_start_ms = models.IntegerField(default=0)
    minimum_servers = models.IntegerField(default=2)
    #: Judge by about this many of the newest calls; 0 for all calls in the window.
    window_calls = models.IntegerField(default=0, db_default=0)

    class Meta:
        verbose_name_plural = "dependencies"
        constraints = (
            models.UniqueConstraint(fields=["environment", "name"], name="dependency_once"),
            models.CheckConstraint(condition=Q(kind__in=Kind.values), name="dependency_kind_known"),
            models.CheckConstraint(
                condition=Q(timeout_ms__range=(1, MAX_MS)), name="dependency_timeout_range"
            ),
            models.CheckConstraint(
                condition=Q(wait_ms__range=(0, MAX_WAIT_MS)), name="dependency_wait_range"
            ),
            *(
                models.CheckConstraint(
                    condition=Q(**{f"{column}__range": (0, most)}), name=f"dependency_{column}_range"
                )
                for column, most in OPTIONAL_COLUMNS.items()
            ),
            models.CheckConstraint(
                condition=Q(open_max_ms__gte=F("open_ms")), name="dependency_open_max_at_least_open"
            ),
            models.CheckConstraint(
                condition=Q(window_calls=0) | Q(window_calls__gte=F("minimum_calls")),
                name="dependency_window_calls_enough",
            ),
            *(
                models.CheckConstraint(
                    condition=Q(**{f"{column}__range": bounds}), name=f"dependency_{column}_range"
                )
                for column, bounds in BREAKER_RANGES.items()
            ),
        )

    def __str__(self) -> str:
        return self.name


class DescriptorFile(models.Model):
    """The rules for the descriptors of one domain, which Envoy sends, as the file of envoyproxy/ratelimit."""

    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="descriptor_files")
    #: The domain that the file names.
    name = models.CharField(max_length=MAX_DOMAIN_NAME, validators=[check_domain])
    #: The text as a person wrote it, with its comments. The rules are read from it.
    file = models.TextField()
    #: Increases with every edit.
    version = models.IntegerField(default=1)

    class Meta:
        constraints = (models.UniqueConstraint(fields=["environment", "name"], name="descriptor_file_once"),)

    def __str__(self) -> str:
        return self.name


#: Kind -> its model and the column of its name, for the things whose rows have a version.
VERSIONED: dict[str, tuple[type[models.Model], str]] = {
    "tenant": (Tenant, "key"),
    "tier": (Tier, "name"),
    "dependency": (Dependency, "name"),
    "template": (Template, "name"),
    "model": (Model, "name"),
    "account": (Account, "name"),
    "budget": (Budget, "name"),
    "descriptors": (DescriptorFile, "name"),
}


class VendorLimit(FollowingColumns):
    """A limit of the vendor on the whole fleet."""

    dependency = models.ForeignKey(Dependency, on_delete=models.CASCADE, related_name="vendor_limits")

    class Meta(FollowingColumns.Meta):
        constraints = (
            *FollowingColumns.Meta.constraints,
            models.UniqueConstraint(fields=["dependency", "name"], name="vendor_limit_once"),
        )

    def __str__(self) -> str:
        return f"{self.dependency}/{self.name}"


class SubjectLimit(FollowingColumns):
    """A limit on requests without a tenant, by address, API key, user or endpoint; or on all requests to a
    service, whoever makes them.
    """

    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="subject_limits")
    #: The service whose requests it counts, ``*`` for every service; empty for a limit that counts ``per``.
    service = models.CharField(max_length=64, blank=True, default="", db_default="")

    whose = CALLERS

    class Meta(FollowingColumns.Meta):
        constraints = (
            *FollowingColumns.Meta.constraints,
            models.UniqueConstraint(fields=["environment", "name"], name="subject_limit_once"),
            models.CheckConstraint(
                condition=Q(per__len__gte=1, service="") | (Q(per__len=0) & ~Q(service="")),
                name="subject_limit_counts_callers_or_all",
            ),
        )

    def __str__(self) -> str:
        return f"{self.environment_id}/{self.name}"
