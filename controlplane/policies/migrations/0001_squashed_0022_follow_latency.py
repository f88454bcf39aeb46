"""The configuration of each environment, and its revisions, as of release 0.2.0."""

from typing import Any
from uuid import uuid4

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import expressions, lookups
from django.db.models.functions import Cast, Greatest, Now
from pgtrigger.compiler import Trigger, UpsertTriggerSql
from pgtrigger.migrations import AddTrigger

from controlplane.policies.models import check_slug, check_subject
from fuseboard.contract.words import Algorithm, FailurePolicy

#: Columns that several tables of limits have.
_COLUMNS: dict[str, Any] = {
    "name": models.CharField(max_length=64),
    "algorithm": models.CharField(
        choices=[
            ("sliding_window", "sliding_window"),
            ("token_bucket", "token_bucket"),
            ("fixed_window", "fixed_window"),
            ("concurrency", "concurrency"),
        ],
        default=Algorithm.TOKEN_BUCKET,
        max_length=32,
    ),
    "limit": models.IntegerField(),
    "window_s": models.IntegerField(),
    "burst": models.IntegerField(default=1),
    "failure_policy": models.CharField(
        choices=[
            ("fail_open", "fail_open"),
            ("fail_closed", "fail_closed"),
            ("local_share", "local_share"),
            ("reserved", "reserved"),
        ],
        default=FailurePolicy.FAIL_OPEN,
        max_length=32,
    ),
    "shadow": models.BooleanField(default=False),
    "period": models.CharField(
        blank=True,
        choices=[("hour", "hour"), ("day", "day"), ("week", "week"), ("month", "month")],
        default="",
        max_length=8,
    ),
    "time_zone": models.CharField(default="UTC", max_length=64),
    "measure": models.CharField(default="calls", max_length=64),
    "per": ArrayField(base_field=models.CharField(max_length=16), blank=True, default=list, size=None),
    "endpoints": ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, size=None),
    "warn_percent": models.IntegerField(default=0),
    "lease_above": models.IntegerField(default=0),
    "reserved_percent": models.IntegerField(db_default=-1, default=-1),
    "own": ArrayField(base_field=models.CharField(max_length=32), blank=True, db_default=[], default=list, size=None),
    "template": models.CharField(blank=True, db_default="", default="", max_length=64),
}


def _columns(names: str) -> list[tuple[str, Any]]:
    return [(name, _COLUMNS[name]) for name in names.split()]


def _constraints(table: str) -> list[Any]:
    return [
        models.CheckConstraint(
            condition=models.Q(("algorithm__in", ["sliding_window", "token_bucket", "fixed_window", "concurrency"])),
            name=f"{table}_algorithm_known",
        ),
        models.CheckConstraint(
            condition=models.Q(("failure_policy__in", ["fail_open", "fail_closed", "local_share", "reserved"])),
            name=f"{table}_failure_policy_known",
        ),
        models.CheckConstraint(condition=models.Q(("limit__range", (0, 1000000000))), name=f"{table}_limit_range"),
        models.CheckConstraint(condition=models.Q(("window_s__range", (1, 34560000))), name=f"{table}_window_range"),
        models.CheckConstraint(condition=models.Q(("burst__range", (1, 1000000000))), name=f"{table}_burst_range"),
        models.CheckConstraint(
            condition=models.Q(("burst", 1), ("algorithm", "token_bucket"), _connector="OR"),
            name=f"{table}_burst_of_buckets_only",
        ),
        models.CheckConstraint(condition=models.Q(("name", ""), _negated=True), name=f"{table}_name_not_empty"),
        models.CheckConstraint(
            condition=models.Q(
                models.Q(("algorithm", "fixed_window"), ("period__in", ["hour", "day", "week", "month"])),
                models.Q(models.Q(("algorithm", "fixed_window"), _negated=True), ("period", "")),
                _connector="OR",
            ),
            name=f"{table}_period_of_fixed_windows",
        ),
        models.CheckConstraint(
            condition=models.Q(
                models.Q(("algorithm", "token_bucket"), _negated=True),
                lookups.LessThanOrEqual(
                    expressions.CombinedExpression(
                        Cast(Greatest(models.F("limit"), models.F("burst")), models.BigIntegerField()),
                        "*",
                        Cast(models.F("window_s"), models.BigIntegerField()),
                    ),
                    models.Value(9007199254),
                ),
                _connector="OR",
            ),
            name=f"{table}_bucket_exact",
        ),
        models.CheckConstraint(
            condition=models.Q(("per__contained_by", ["user", "ip", "api_key", "endpoint"])), name=f"{table}_per_known"
        ),
        models.CheckConstraint(condition=models.Q(("endpoints__len__lte", 20)), name=f"{table}_endpoints_few"),
        models.CheckConstraint(
            condition=models.Q(models.Q(("measure", ""), _negated=True), models.Q(("time_zone", ""), _negated=True)),
            name=f"{table}_measure_and_zone_not_empty",
        ),
        models.CheckConstraint(
            condition=models.Q(("warn_percent__range", (0, 100))), name=f"{table}_warn_percent_range"
        ),
        models.CheckConstraint(
            condition=models.Q(("lease_above__range", (0, 1000000000))), name=f"{table}_lease_above_range"
        ),
        models.CheckConstraint(
            condition=models.Q(("reserved_percent__range", (-1, 100))), name=f"{table}_reserved_percent_range"
        ),
    ]


def _own_beside_a_template(table: str) -> Any:
    return models.CheckConstraint(
        condition=models.Q(models.Q(("template", ""), _negated=True), ("own__len", 0), _connector="OR"),
        name=f"{table}_own_beside_a_template",
    )


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("policies", "0001_create_configuration"),
        ("policies", "0002_store_every_algorithm"),
        ("policies", "0003_keep_what_revisions_change"),
        ("policies", "0004_keep_uploaded_plans"),
        ("policies", "0005_announce_quotas_that_end"),
        ("policies", "0006_find_tenants_of_a_tier"),
        ("policies", "0007_search_tenants_in_an_index"),
        ("policies", "0008_reserve_by_limit"),
        ("policies", "0009_keep_templates"),
        ("policies", "0010_let_tenants_belong_to_others"),
        ("policies", "0011_slow_calls_open_at_half"),
        ("policies", "0012_wait_for_limits"),
        ("policies", "0013_judge_by_the_last_calls"),
        ("policies", "0014_protect_pods"),
        ("policies", "0015_revert_a_revision"),
        ("policies", "0016_freeze_edits"),
        ("policies", "0017_change_alert_rules"),
        ("policies", "0018_edit_runbooks"),
        ("policies", "0019_limit_all_callers"),
        ("policies", "0020_bound_parts_of_streams"),
        ("policies", "0021_wait_for_redis"),
        ("policies", "0022_follow_latency"),
    ]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Environment",
            fields=[
                ("slug", models.CharField(max_length=64, primary_key=True, serialize=False, validators=[check_slug])),
                ("epoch", models.BigIntegerField(default=1)),
                ("revision", models.BigIntegerField(default=0)),
                ("tuning", models.JSONField(blank=True, default=dict)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("epoch__gte", 1), ("revision__gte", 0)),
                        name="environment_head_not_negative",
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="Runbook",
            fields=[
                ("slug", models.CharField(max_length=64, primary_key=True, serialize=False, validators=[check_slug])),
                ("title", models.CharField(max_length=200)),
                ("body", models.TextField()),
                ("source", models.CharField(blank=True, max_length=200)),
                ("default_body", models.TextField(blank=True, db_default="", default="")),
                ("default_title", models.CharField(blank=True, db_default="", default="", max_length=200)),
                ("version", models.PositiveIntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.CreateModel(
            name="Dependency",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=64, validators=[check_slug])),
                ("title", models.CharField(blank=True, max_length=200)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("llm", "LLM API"),
                            ("external", "External API"),
                            ("database", "Database"),
                            ("internal", "Internal service"),
                        ],
                        default="external",
                        max_length=16,
                    ),
                ),
                ("owner", models.CharField(blank=True, max_length=200)),
                ("fallback_note", models.CharField(blank=True, max_length=500)),
                ("timeout_ms", models.BigIntegerField(default=30000)),
                ("reset_revision", models.BigIntegerField(default=0)),
                ("version", models.IntegerField(default=1)),
                ("consecutive_failures", models.IntegerField(default=5)),
                ("failure_percent", models.IntegerField(default=50)),
                ("slow_percent", models.IntegerField(default=50)),
                ("slow_ms", models.BigIntegerField(default=10000)),
                ("minimum_calls", models.IntegerField(default=20)),
                ("window_s", models.IntegerField(default=30)),
                ("open_ms", models.BigIntegerField(default=60000)),
                ("open_max_ms", models.BigIntegerField(default=600000)),
                ("probes", models.IntegerField(default=3)),
                ("probe_lease_ms", models.BigIntegerField(default=30000)),
                ("successes_to_close", models.IntegerField(default=2)),
                ("minimum_servers", models.IntegerField(default=2)),
                (
                    "environment",
                    models.ForeignKey(on_delete=models.PROTECT, related_name="dependencies", to="policies.environment"),
                ),
                (
                    "runbook",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=models.SET_NULL,
                        related_name="dependencies",
                        to="policies.runbook",
                    ),
                ),
                ("slow_start_ms", models.IntegerField(default=0)),
                ("wait_ms", models.IntegerField(db_default=0, default=0)),
                ("window_calls", models.IntegerField(db_default=0, default=0)),
                ("protection", models.JSONField(blank=True, db_default={}, default=dict)),
                ("between_parts_ms", models.IntegerField(db_default=0, default=0)),
                ("first_part_ms", models.IntegerField(db_default=0, default=0)),
                ("store_wait_ms", models.IntegerField(db_default=0, default=0)),
                ("latency_rise_percent", models.IntegerField(db_default=0, default=0)),
            ],
            options={
                "verbose_name_plural": "dependencies",
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "name"), name="dependency_once"),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["llm", "external", "database", "internal"])),
                        name="dependency_kind_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("timeout_ms__range", (1, 34560000000))), name="dependency_timeout_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("open_max_ms__gte", models.F("open_ms"))),
                        name="dependency_open_max_at_least_open",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("consecutive_failures__range", (0, 1000000000))),
                        name="dependency_consecutive_failures_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("failure_percent__range", (1, 100))),
                        name="dependency_failure_percent_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("slow_percent__range", (1, 100))), name="dependency_slow_percent_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("slow_ms__range", (1, 34560000000))), name="dependency_slow_ms_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("minimum_calls__range", (1, 1000000000))),
                        name="dependency_minimum_calls_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("window_s__range", (1, 600))), name="dependency_window_s_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("open_ms__range", (1, 34560000000))), name="dependency_open_ms_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("open_max_ms__range", (1, 34560000000))),
                        name="dependency_open_max_ms_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("probes__range", (1, 100))), name="dependency_probes_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("probe_lease_ms__range", (1, 34560000000))),
                        name="dependency_probe_lease_ms_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("successes_to_close__range", (1, 100))),
                        name="dependency_successes_to_close_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("minimum_servers__range", (1, 100))),
                        name="dependency_minimum_servers_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("slow_start_ms__range", (0, 600000))), name="dependency_slow_start_ms_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("wait_ms__range", (0, 60000))), name="dependency_wait_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("window_calls", 0), ("window_calls__gte", models.F("minimum_calls")), _connector="OR"
                        ),
                        name="dependency_window_calls_enough",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("window_calls__range", (0, 1000000000))),
                        name="dependency_window_calls_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("first_part_ms__range", (0, 600000))), name="dependency_first_part_ms_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("between_parts_ms__range", (0, 600000))),
                        name="dependency_between_parts_ms_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("store_wait_ms__range", (0, 500))), name="dependency_store_wait_ms_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("latency_rise_percent__range", (0, 1000))),
                        name="dependency_latency_rise_percent_range",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Tier",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=64, validators=[check_slug])),
                ("title", models.CharField(blank=True, max_length=200)),
                ("priority", models.IntegerField(default=50)),
                ("version", models.IntegerField(default=1)),
                (
                    "environment",
                    models.ForeignKey(on_delete=models.PROTECT, related_name="tiers", to="policies.environment"),
                ),
                ("wait_ms", models.IntegerField(db_default=0, default=0)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "name"), name="tier_once"),
                    models.CheckConstraint(
                        condition=models.Q(("priority__range", (0, 100))), name="tier_priority_range"
                    ),
                    models.CheckConstraint(condition=models.Q(("wait_ms__range", (0, 60000))), name="tier_wait_range"),
                ]
            },
        ),
        # A tier needs its environment, and an environment its default tier.
        migrations.AddField(
            "environment",
            "default_tier",
            models.ForeignKey(on_delete=models.PROTECT, related_name="+", to="policies.tier"),
        ),
        migrations.AddField("environment", "protection", models.JSONField(blank=True, db_default={}, default=dict)),
        migrations.AddField(
            "environment", "frozen_by", models.CharField(blank=True, db_default="", default="", max_length=200)
        ),
        migrations.AddField(
            "environment", "frozen_reason", models.CharField(blank=True, db_default="", default="", max_length=500)
        ),
        migrations.AddField("environment", "frozen_until", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("environment", "alert_rules", models.JSONField(blank=True, db_default={}, default=dict)),
        migrations.CreateModel(
            name="Tenant",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(max_length=200, validators=[check_subject])),
                ("title", models.CharField(blank=True, max_length=200)),
                ("suspended", models.BooleanField(default=False)),
                ("deleted", models.BooleanField(default=False)),
                ("changed_revision", models.BigIntegerField()),
                ("version", models.IntegerField(default=1)),
                (
                    "environment",
                    models.ForeignKey(on_delete=models.PROTECT, related_name="tenants", to="policies.environment"),
                ),
                ("tier", models.ForeignKey(on_delete=models.PROTECT, related_name="tenants", to="policies.tier")),
                ("parent", models.CharField(blank=True, db_default="", default="", max_length=200)),
            ],
            options={
                "indexes": [
                    models.Index(fields=["environment", "changed_revision"], name="tenant_by_change"),
                    models.Index(condition=models.Q(("deleted", False)), fields=["tier", "key"], name="tenant_of_tier"),
                    models.Index(
                        condition=models.Q(("deleted", False)),
                        fields=["environment", "key"],
                        include=("title", "tier", "id"),
                        name="tenant_searched",
                    ),
                    models.Index(
                        condition=models.Q(("parent", ""), _negated=True),
                        fields=["environment", "parent", "key"],
                        name="tenant_of_parent",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "key"), name="tenant_once"),
                    models.CheckConstraint(condition=models.Q(("key", ""), _negated=True), name="tenant_key_not_empty"),
                ],
            },
        ),
        migrations.CreateModel(
            name="TenantQuota",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                *_columns("name algorithm limit window_s burst failure_policy shadow"),
                ("tenant", models.ForeignKey(on_delete=models.CASCADE, related_name="quotas", to="policies.tenant")),
                ("dependency", models.CharField(blank=True, default="", max_length=64)),
                *_columns("endpoints lease_above measure per period time_zone warn_percent"),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("returns_to", models.JSONField(blank=True, null=True)),
                ("announced_at", models.DateTimeField(blank=True, null=True)),
                *_columns("reserved_percent own template"),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("expires_at__isnull", False)),
                        fields=["expires_at"],
                        name="tenantquota_expiring",
                    ),
                    models.Index(
                        condition=models.Q(("template", ""), _negated=True),
                        fields=["template"],
                        name="tenantquota_following",
                    ),
                ],
                "constraints": [
                    *_constraints("tenantquota"),
                    _own_beside_a_template("tenantquota"),
                    models.UniqueConstraint(fields=("tenant", "name"), name="tenant_quota_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("returns_to__isnull", True), ("expires_at__isnull", False), _connector="OR"
                        ),
                        name="tenantquota_returns_when_it_expires",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TierQuota",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                *_columns("name algorithm limit window_s burst failure_policy shadow"),
                ("tier", models.ForeignKey(on_delete=models.CASCADE, related_name="quotas", to="policies.tier")),
                ("dependency", models.CharField(blank=True, default="", max_length=64)),
                *_columns(
                    "endpoints lease_above measure per period time_zone warn_percent reserved_percent own template"
                ),
            ],
            options={
                "constraints": [
                    *_constraints("tierquota"),
                    _own_beside_a_template("tierquota"),
                    models.UniqueConstraint(fields=("tier", "name"), name="tier_quota_once"),
                ]
            },
        ),
        migrations.CreateModel(
            name="VendorLimit",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                *_columns("name algorithm limit window_s burst failure_policy shadow"),
                (
                    "dependency",
                    models.ForeignKey(on_delete=models.CASCADE, related_name="vendor_limits", to="policies.dependency"),
                ),
                *_columns(
                    "endpoints lease_above measure per period time_zone warn_percent reserved_percent own template"
                ),
            ],
            options={
                "constraints": [
                    *_constraints("vendorlimit"),
                    _own_beside_a_template("vendorlimit"),
                    models.UniqueConstraint(fields=("dependency", "name"), name="vendor_limit_once"),
                ]
            },
        ),
        migrations.CreateModel(
            name="SubjectLimit",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                *_columns(
                    "name algorithm limit window_s burst failure_policy shadow "
                    "period time_zone measure per endpoints warn_percent lease_above"
                ),
                (
                    "environment",
                    models.ForeignKey(
                        on_delete=models.CASCADE, related_name="subject_limits", to="policies.environment"
                    ),
                ),
                *_columns("reserved_percent own template"),
                ("service", models.CharField(blank=True, db_default="", default="", max_length=64)),
            ],
            options={
                "constraints": [
                    *_constraints("subjectlimit"),
                    _own_beside_a_template("subjectlimit"),
                    models.UniqueConstraint(fields=("environment", "name"), name="subject_limit_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("per__len__gte", 1), ("service", "")),
                            models.Q(("per__len", 0), models.Q(("service", ""), _negated=True)),
                            _connector="OR",
                        ),
                        name="subject_limit_counts_callers_or_all",
                    ),
                ]
            },
        ),
        migrations.CreateModel(
            name="Revision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("epoch", models.BigIntegerField()),
                ("number", models.BigIntegerField()),
                ("at", models.DateTimeField(db_default=Now())),
                ("actor", models.CharField(max_length=200)),
                ("role", models.CharField(max_length=32)),
                ("origin", models.CharField(max_length=16)),
                ("action", models.CharField(max_length=64)),
                ("target", models.CharField(blank=True, max_length=200)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("changed", models.IntegerField(default=0)),
                ("restores", models.BigIntegerField(blank=True, null=True)),
                ("reverts", models.BigIntegerField(blank=True, null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("reverts__isnull", False)),
                        fields=["environment", "reverts"],
                        name="revision_by_reverted",
                    )
                ],
                "constraints": [models.UniqueConstraint(fields=("environment", "number"), name="revision_number_once")],
            },
        ),
        AddTrigger(
            model_name="revision",
            trigger=Trigger(
                name="revision_stays",
                sql=UpsertTriggerSql(
                    func="RAISE EXCEPTION 'pgtrigger: Cannot update or delete rows from % table', TG_TABLE_NAME;",
                    hash="d283283f3af5ac246a9758dbd0dea433b9672ad2",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_revision_stays_f9fcf",
                    table="policies_revision",
                    when="BEFORE",
                ),
            ),
        ),
        migrations.CreateModel(
            name="Change",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=16)),
                ("name", models.CharField(max_length=200)),
                ("before", models.JSONField(null=True)),
                ("after", models.JSONField(null=True)),
                (
                    "revision",
                    models.ForeignKey(on_delete=models.PROTECT, related_name="changes", to="policies.revision"),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["kind", "name", "-revision"], name="change_by_thing")],
                "constraints": [models.UniqueConstraint(fields=("revision", "kind", "name"), name="change_once")],
            },
        ),
        AddTrigger(
            model_name="change",
            trigger=Trigger(
                name="change_stays",
                sql=UpsertTriggerSql(
                    func="RAISE EXCEPTION 'pgtrigger: Cannot update or delete rows from % table', TG_TABLE_NAME;",
                    hash="97b6c38e54e4f5157a1352b23e07f52c9bf0363b",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_change_stays_a425c",
                    table="policies_change",
                    when="BEFORE",
                ),
            ),
        ),
        migrations.CreateModel(
            name="Draft",
            fields=[
                ("id", models.UUIDField(default=uuid4, editable=False, primary_key=True, serialize=False)),
                ("environment", models.CharField(max_length=64)),
                ("filename", models.CharField(max_length=200)),
                ("content", models.BinaryField()),
                ("prune", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("actor", models.JSONField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("reading", "Reading"),
                            ("read", "Read"),
                            ("refused", "Refused"),
                            ("ordered", "Waiting to be applied"),
                            ("applying", "Being applied"),
                            ("applied", "Applied"),
                        ],
                        default="waiting",
                        max_length=16,
                    ),
                ),
                ("step", models.CharField(blank=True, max_length=64)),
                ("done", models.IntegerField(default=0)),
                ("of", models.IntegerField(default=0)),
                ("errors", models.JSONField(default=list)),
                ("difference", models.JSONField(null=True)),
                ("compared_with", models.BigIntegerField(null=True)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("revision", models.BigIntegerField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["waiting", "reading", "ordered", "applying"])),
                        fields=["created_at"],
                        name="draft_unfinished",
                    )
                ]
            },
        ),
        migrations.CreateModel(
            name="Template",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                *_columns(
                    "name algorithm limit window_s burst failure_policy shadow "
                    "period time_zone measure per endpoints warn_percent lease_above reserved_percent"
                ),
                ("title", models.CharField(blank=True, max_length=200)),
                ("version", models.IntegerField(default=1)),
                (
                    "environment",
                    models.ForeignKey(on_delete=models.CASCADE, related_name="templates", to="policies.environment"),
                ),
            ],
            options={
                "constraints": [
                    *_constraints("template"),
                    models.UniqueConstraint(fields=("environment", "name"), name="template_once"),
                ]
            },
        ),
        migrations.CreateModel(
            name="RunbookRevision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("title", models.CharField(max_length=200)),
                ("body", models.TextField()),
                ("shipped", models.BooleanField(default=False)),
                ("by", models.CharField(blank=True, max_length=200)),
                ("at", models.DateTimeField()),
                ("reason", models.CharField(max_length=500)),
                (
                    "runbook",
                    models.ForeignKey(on_delete=models.CASCADE, related_name="revisions", to="policies.runbook"),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("runbook", "number"), name="runbook_revision_number")]
            },
        ),
    ]
