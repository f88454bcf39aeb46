"""Finds the entries of a request, a trace, a token or an owner without reading the whole audit."""

from django.db import migrations, models


def by(field: str) -> migrations.AddIndex:
    index = models.Index(fields=[field, "-id"], condition=~models.Q(**{field: ""}), name=f"entry_by_{field}")
    return migrations.AddIndex("entry", index)


class Migration(migrations.Migration):
    dependencies = [("audit", "0006_name_requests")]

    operations = [by(field) for field in ("request_id", "trace_id", "token", "owner")]
