import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Figures',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('gateway', models.CharField(max_length=100)),
                ('environment', models.CharField(max_length=64)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('document', models.JSONField(default=dict)),
            ],
            options={
                'verbose_name_plural': 'figures',
                'constraints': [models.UniqueConstraint(fields=('gateway', 'environment'), name='fleet_figures_once')],
            },
        ),
        migrations.CreateModel(
            name='Server',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('environment', models.CharField(max_length=64)),
                ('name', models.CharField(max_length=64)),
                ('boot', models.CharField(max_length=64)),
                ('service', models.CharField(max_length=64)),
                ('zone', models.CharField(blank=True, default='', max_length=64)),
                ('agent_version', models.CharField(max_length=64)),
                ('state', models.CharField(choices=[('online', 'Online'), ('late', 'Late'), ('unknown', 'Unknown'), ('offline', 'Offline'), ('gone', 'Gone')], max_length=16)),
                ('mode', models.CharField(choices=[('shared', 'shared'), ('local', 'local'), ('ramping', 'ramping')], max_length=16)),
                ('mode_since', models.DateTimeField()),
                ('mode_cause', models.CharField(blank=True, default='', max_length=500)),
                ('epoch', models.BigIntegerField(default=0)),
                ('revision', models.BigIntegerField(default=0)),
                ('config_hash', models.CharField(blank=True, default='', max_length=64)),
                ('config_status', models.CharField(choices=[('applied', 'applied'), ('rejected', 'rejected'), ('none', 'none')], max_length=16)),
                ('config_source', models.CharField(choices=[('http', 'http'), ('redis', 'redis'), ('disk', 'disk'), ('bootstrap', 'bootstrap'), ('built_in', 'built_in')], max_length=16)),
                ('config_error', models.CharField(blank=True, default='', max_length=500)),
                ('started_at', models.DateTimeField()),
                ('last_seen_at', models.DateTimeField()),
                ('due_at', models.DateTimeField()),
                ('left_at', models.DateTimeField(blank=True, null=True)),
                ('calls_per_s', models.FloatField(default=0.0)),
                ('redis_p99_us', models.IntegerField(blank=True, null=True)),
                ('breakers', models.JSONField(default=list)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('environment', 'name'), name='fleet_server_once'), models.CheckConstraint(condition=models.Q(('state__in', ['online', 'late', 'unknown', 'offline', 'gone'])), name='fleet_server_state_known')],
            },
        ),
        # Rows are rewritten every few seconds: half-empty pages let Postgres do it in place (HOT).
        migrations.RunSQL(
            "ALTER TABLE fleet_server SET (fillfactor = 50)",
            "ALTER TABLE fleet_server RESET (fillfactor)",
        ),
    ]
