
import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.comparison
import django.db.models.lookups
import fuseboard.contract.words
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('policies', '0001_create_configuration'),
    ]

    operations = [
        migrations.CreateModel(
            name='SubjectLimit',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=64)),
                ('algorithm', models.CharField(choices=[('sliding_window', 'sliding_window'), ('token_bucket', 'token_bucket'), ('fixed_window', 'fixed_window'), ('concurrency', 'concurrency')], default=fuseboard.contract.words.Algorithm['TOKEN_BUCKET'], max_length=32)),
                ('limit', models.IntegerField()),
                ('window_s', models.IntegerField()),
                ('burst', models.IntegerField(default=1)),
                ('failure_policy', models.CharField(choices=[('fail_open', 'fail_open'), ('fail_closed', 'fail_closed'), ('local_share', 'local_share'), ('reserved', 'reserved')], default=fuseboard.contract.words.FailurePolicy['FAIL_OPEN'], max_length=32)),
                ('shadow', models.BooleanField(default=False)),
                ('period', models.CharField(blank=True, choices=[('hour', 'hour'), ('day', 'day'), ('week', 'week'), ('month', 'month')], default='', max_length=8)),
                ('time_zone', models.CharField(default='UTC', max_length=64)),
                ('measure', models.CharField(default='calls', max_length=64)),
                ('per', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=16), blank=True, default=list, size=None)),
                ('endpoints', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, size=None)),
                ('warn_percent', models.IntegerField(default=0)),
                ('lease_above', models.IntegerField(default=0)),
            ],
            options={
                'abstract': False,
            },
        ),
        migrations.RemoveConstraint(
            model_name='tenantquota',
            name='tenantquota_algorithm_known',
        ),
        migrations.RemoveConstraint(
            model_name='tenantquota',
            name='tenantquota_burst_of_buckets_only',
        ),
        migrations.RemoveConstraint(
            model_name='tierquota',
            name='tierquota_algorithm_known',
        ),
        migrations.RemoveConstraint(
            model_name='tierquota',
            name='tierquota_burst_of_buckets_only',
        ),
        migrations.RemoveConstraint(
            model_name='vendorlimit',
            name='vendorlimit_algorithm_known',
        ),
        migrations.RemoveConstraint(
            model_name='vendorlimit',
            name='vendorlimit_burst_of_buckets_only',
        ),
        migrations.AddField(
            model_name='dependency',
            name='slow_start_ms',
            field=models.IntegerField(default=0),
        ),
        migrations.AddField(
            model_name='tenantquota',
            name='dependency',
            field=models.CharField(blank=True, default='', max_length=64),
        ),
        migrations.AddField(
            model_name='tenantquota',
            name='endpoints',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, size=None),
        ),
        migrations.AddField(
            model_name='tenantquota',
            name='lease_above',
            field=models.IntegerField(default=0),
        ),
        migrations.AddField(
            model_name='tenantquota',
            name='measure',
            field=models.CharField(default='calls', max_length=64),
        ),
        migrations.AddField(
            model_name='tenantquota',
            name='per',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=16), blank=True, default=list, size=None),
        ),
        migrations.AddField(
            model_name='tenantquota',
            name='period',
            field=models.CharField(blank=True, choices=[('hour', 'hour'), ('day', 'day'), ('week', 'week'), ('month', 'month')], default='', max_length=8),
        ),
        migrations.AddField(
            model_name='tenantquota',
            name='time_zone',
            field=models.CharField(default='UTC', max_length=64),
        ),
        migrations.AddField(
            model_name='tenantquota',
            name='warn_percent',
            field=models.IntegerField(default=0),
        ),
        migrations.AddField(
            model_name='tierquota',
            name='dependency',
            field=models.CharField(blank=True, default='', max_length=64),
        ),
        migrations.AddField(
            model_name='tierquota',
            name='endpoints',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, size=None),
        ),
        migrations.AddField(
            model_name='tierquota',
            name='lease_above',
            field=models.IntegerField(default=0),
        ),
        migrations.AddField(
            model_name='tierquota',
            name='measure',
            field=models.CharField(default='calls', max_length=64),
        ),
        migrations.AddField(
            model_name='tierquota',
            name='per',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=16), blank=True, default=list, size=None),
        ),
        migrations.AddField(
            model_name='tierquota',
            name='period',
            field=models.CharField(blank=True, choices=[('hour', 'hour'), ('day', 'day'), ('week', 'week'), ('month', 'month')], default='', max_length=8),
        ),
        migrations.AddField(
            model_name='tierquota',
            name='time_zone',
            field=models.CharField(default='UTC', max_length=64),
        ),
        migrations.AddField(
            model_name='tierquota',
            name='warn_percent',
            field=models.IntegerField(default=0),
        ),
        migrations.AddField(
            model_name='vendorlimit',
            name='endpoints',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, size=None),
        ),
        migrations.AddField(
            model_name='vendorlimit',
            name='lease_above',
            field=models.IntegerField(default=0),
        ),
        migrations.AddField(
            model_name='vendorlimit',
            name='measure',
            field=models.CharField(default='calls', max_length=64),
        ),
        migrations.AddField(
            model_name='vendorlimit',
            name='per',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=16), blank=True, default=list, size=None),
        ),
        migrations.AddField(
            model_name='vendorlimit',
            name='period',
            field=models.CharField(blank=True, choices=[('hour', 'hour'), ('day', 'day'), ('week', 'week'), ('month', 'month')], default='', max_length=8),
        ),
        migrations.AddField(
            model_name='vendorlimit',
            name='time_zone',
            field=models.CharField(default='UTC', max_length=64),
        ),
        migrations.AddField(
            model_name='vendorlimit',
            name='warn_percent',
            field=models.IntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='tenantquota',
            name='algorithm',
            field=models.CharField(choices=[('sliding_window', 'sliding_window'), ('token_bucket', 'token_bucket'), ('fixed_window', 'fixed_window'), ('concurrency', 'concurrency')], default=fuseboard.contract.words.Algorithm['TOKEN_BUCKET'], max_length=32),
        ),
        migrations.AlterField(
            model_name='tierquota',
            name='algorithm',
            field=models.CharField(choices=[('sliding_window', 'sliding_window'), ('token_bucket', 'token_bucket'), ('fixed_window', 'fixed_window'), ('concurrency', 'concurrency')], default=fuseboard.contract.words.Algorithm['TOKEN_BUCKET'], max_length=32),
        ),
        migrations.AlterField(
            model_name='vendorlimit',
            name='algorithm',
            field=models.CharField(choices=[('sliding_window', 'sliding_window'), ('token_bucket', 'token_bucket'), ('fixed_window', 'fixed_window'), ('concurrency', 'concurrency')], default=fuseboard.contract.words.Algorithm['TOKEN_BUCKET'], max_length=32),
        ),
        migrations.AddConstraint(
            model_name='dependency',
            constraint=models.CheckConstraint(condition=models.Q(('slow_start_ms__range', (0, 600000))), name='dependency_slow_start_ms_range'),
        ),
        migrations.AddConstraint(
            model_name='tenantquota',
            constraint=models.CheckConstraint(condition=models.Q(('algorithm__in', ['sliding_window', 'token_bucket', 'fixed_window', 'concurrency'])), name='tenantquota_algorithm_known'),
        ),
        migrations.AddConstraint(
            model_name='tenantquota',
            constraint=models.CheckConstraint(condition=models.Q(('burst', 1), ('algorithm', 'token_bucket'), _connector='OR'), name='tenantquota_burst_of_buckets_only'),
        ),
        migrations.AddConstraint(
            model_name='tenantquota',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'fixed_window'), ('period__in', ['hour', 'day', 'week', 'month'])), models.Q(models.Q(('algorithm', 'fixed_window'), _negated=True), ('period', '')), _connector='OR'), name='tenantquota_period_of_fixed_windows'),
        ),
        migrations.AddConstraint(
            model_name='tenantquota',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'token_bucket'), _negated=True), django.db.models.lookups.LessThanOrEqual(django.db.models.expressions.CombinedExpression(django.db.models.functions.comparison.Cast(django.db.models.functions.comparison.Greatest(models.F('limit'), models.F('burst')), models.BigIntegerField()), '*', django.db.models.functions.comparison.Cast(models.F('window_s'), models.BigIntegerField())), models.Value(9007199254)), _connector='OR'), name='tenantquota_bucket_exact'),
        ),
        migrations.AddConstraint(
            model_name='tenantquota',
            constraint=models.CheckConstraint(condition=models.Q(('per__contained_by', ['user', 'ip', 'api_key', 'endpoint'])), name='tenantquota_per_known'),
        ),
        migrations.AddConstraint(
            model_name='tenantquota',
            constraint=models.CheckConstraint(condition=models.Q(('endpoints__len__lte', 20)), name='tenantquota_endpoints_few'),
        ),
        migrations.AddConstraint(
            model_name='tenantquota',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('measure', ''), _negated=True), models.Q(('time_zone', ''), _negated=True)), name='tenantquota_measure_and_zone_not_empty'),
        ),
        migrations.AddConstraint(
            model_name='tenantquota',
            constraint=models.CheckConstraint(condition=models.Q(('warn_percent__range', (0, 100))), name='tenantquota_warn_percent_range'),
        ),
        migrations.AddConstraint(
            model_name='tenantquota',
            constraint=models.CheckConstraint(condition=models.Q(('lease_above__range', (0, 1000000000))), name='tenantquota_lease_above_range'),
        ),
        migrations.AddConstraint(
            model_name='tierquota',
            constraint=models.CheckConstraint(condition=models.Q(('algorithm__in', ['sliding_window', 'token_bucket', 'fixed_window', 'concurrency'])), name='tierquota_algorithm_known'),
        ),
        migrations.AddConstraint(
            model_name='tierquota',
            constraint=models.CheckConstraint(condition=models.Q(('burst', 1), ('algorithm', 'token_bucket'), _connector='OR'), name='tierquota_burst_of_buckets_only'),
        ),
        migrations.AddConstraint(
            model_name='tierquota',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'fixed_window'), ('period__in', ['hour', 'day', 'week', 'month'])), models.Q(models.Q(('algorithm', 'fixed_window'), _negated=True), ('period', '')), _connector='OR'), name='tierquota_period_of_fixed_windows'),
        ),
        migrations.AddConstraint(
            model_name='tierquota',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'token_bucket'), _negated=True), django.db.models.lookups.LessThanOrEqual(django.db.models.expressions.CombinedExpression(django.db.models.functions.comparison.Cast(django.db.models.functions.comparison.Greatest(models.F('limit'), models.F('burst')), models.BigIntegerField()), '*', django.db.models.functions.comparison.Cast(models.F('window_s'), models.BigIntegerField())), models.Value(9007199254)), _connector='OR'), name='tierquota_bucket_exact'),
        ),
        migrations.AddConstraint(
            model_name='tierquota',
            constraint=models.CheckConstraint(condition=models.Q(('per__contained_by', ['user', 'ip', 'api_key', 'endpoint'])), name='tierquota_per_known'),
        ),
        migrations.AddConstraint(
            model_name='tierquota',
            constraint=models.CheckConstraint(condition=models.Q(('endpoints__len__lte', 20)), name='tierquota_endpoints_few'),
        ),
        migrations.AddConstraint(
            model_name='tierquota',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('measure', ''), _negated=True), models.Q(('time_zone', ''), _negated=True)), name='tierquota_measure_and_zone_not_empty'),
        ),
        migrations.AddConstraint(
            model_name='tierquota',
            constraint=models.CheckConstraint(condition=models.Q(('warn_percent__range', (0, 100))), name='tierquota_warn_percent_range'),
        ),
        migrations.AddConstraint(
            model_name='tierquota',
            constraint=models.CheckConstraint(condition=models.Q(('lease_above__range', (0, 1000000000))), name='tierquota_lease_above_range'),
        ),
        migrations.AddConstraint(
            model_name='vendorlimit',
            constraint=models.CheckConstraint(condition=models.Q(('algorithm__in', ['sliding_window', 'token_bucket', 'fixed_window', 'concurrency'])), name='vendorlimit_algorithm_known'),
        ),
        migrations.AddConstraint(
            model_name='vendorlimit',
            constraint=models.CheckConstraint(condition=models.Q(('burst', 1), ('algorithm', 'token_bucket'), _connector='OR'), name='vendorlimit_burst_of_buckets_only'),
        ),
        migrations.AddConstraint(
            model_name='vendorlimit',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'fixed_window'), ('period__in', ['hour', 'day', 'week', 'month'])), models.Q(models.Q(('algorithm', 'fixed_window'), _negated=True), ('period', '')), _connector='OR'), name='vendorlimit_period_of_fixed_windows'),
        ),
        migrations.AddConstraint(
            model_name='vendorlimit',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'token_bucket'), _negated=True), django.db.models.lookups.LessThanOrEqual(django.db.models.expressions.CombinedExpression(django.db.models.functions.comparison.Cast(django.db.models.functions.comparison.Greatest(models.F('limit'), models.F('burst')), models.BigIntegerField()), '*', django.db.models.functions.comparison.Cast(models.F('window_s'), models.BigIntegerField())), models.Value(9007199254)), _connector='OR'), name='vendorlimit_bucket_exact'),
        ),
        migrations.AddConstraint(
            model_name='vendorlimit',
            constraint=models.CheckConstraint(condition=models.Q(('per__contained_by', ['user', 'ip', 'api_key', 'endpoint'])), name='vendorlimit_per_known'),
        ),
        migrations.AddConstraint(
            model_name='vendorlimit',
            constraint=models.CheckConstraint(condition=models.Q(('endpoints__len__lte', 20)), name='vendorlimit_endpoints_few'),
        ),
        migrations.AddConstraint(
            model_name='vendorlimit',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('measure', ''), _negated=True), models.Q(('time_zone', ''), _negated=True)), name='vendorlimit_measure_and_zone_not_empty'),
        ),
        migrations.AddConstraint(
            model_name='vendorlimit',
            constraint=models.CheckConstraint(condition=models.Q(('warn_percent__range', (0, 100))), name='vendorlimit_warn_percent_range'),
        ),
        migrations.AddConstraint(
            model_name='vendorlimit',
            constraint=models.CheckConstraint(condition=models.Q(('lease_above__range', (0, 1000000000))), name='vendorlimit_lease_above_range'),
        ),
        migrations.AddField(
            model_name='subjectlimit',
            name='environment',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='subject_limits', to='policies.environment'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(('algorithm__in', ['sliding_window', 'token_bucket', 'fixed_window', 'concurrency'])), name='subjectlimit_algorithm_known'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(('failure_policy__in', ['fail_open', 'fail_closed', 'local_share', 'reserved'])), name='subjectlimit_failure_policy_known'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(('limit__range', (0, 1000000000))), name='subjectlimit_limit_range'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(('window_s__range', (1, 34560000))), name='subjectlimit_window_range'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(('burst__range', (1, 1000000000))), name='subjectlimit_burst_range'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(('burst', 1), ('algorithm', 'token_bucket'), _connector='OR'), name='subjectlimit_burst_of_buckets_only'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(('name', ''), _negated=True), name='subjectlimit_name_not_empty'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'fixed_window'), ('period__in', ['hour', 'day', 'week', 'month'])), models.Q(models.Q(('algorithm', 'fixed_window'), _negated=True), ('period', '')), _connector='OR'), name='subjectlimit_period_of_fixed_windows'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'token_bucket'), _negated=True), django.db.models.lookups.LessThanOrEqual(django.db.models.expressions.CombinedExpression(django.db.models.functions.comparison.Cast(django.db.models.functions.comparison.Greatest(models.F('limit'), models.F('burst')), models.BigIntegerField()), '*', django.db.models.functions.comparison.Cast(models.F('window_s'), models.BigIntegerField())), models.Value(9007199254)), _connector='OR'), name='subjectlimit_bucket_exact'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(('per__contained_by', ['user', 'ip', 'api_key', 'endpoint'])), name='subjectlimit_per_known'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(('endpoints__len__lte', 20)), name='subjectlimit_endpoints_few'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('measure', ''), _negated=True), models.Q(('time_zone', ''), _negated=True)), name='subjectlimit_measure_and_zone_not_empty'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(('warn_percent__range', (0, 100))), name='subjectlimit_warn_percent_range'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(('lease_above__range', (0, 1000000000))), name='subjectlimit_lease_above_range'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.UniqueConstraint(fields=('environment', 'name'), name='subject_limit_once'),
        ),
        migrations.AddConstraint(
            model_name='subjectlimit',
            constraint=models.CheckConstraint(condition=models.Q(('per__len__gte', 1)), name='subject_limit_counts_by_something'),
        ),
    ]
