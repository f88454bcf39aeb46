"""Finds the entries of a request, a trace, a token or an owner without reading the whole audit."""

from django.db import migrations, models

from controlplane.upgrades.operations import AddIndexConcurrently


def by(field: str) -> AddIndexConcurrently:
    index = models.Index(fields=[field, "-id"], condition=~models.Q(**{field: ""}), name=f"entry_by_{field}")
    return AddIndexConcurrently("entry", index)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("audit", "0006_name_requests")]

    operations = [by(field) for field in ("request_id", "trace_id", "token", "owner")]
