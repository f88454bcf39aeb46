from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate


class AuditConfig(AppConfig):
    name = "controlplane.audit"
    label = "audit"

    def ready(self) -> None:
        from controlplane.audit import guards

        # These signals see every migration, including those of apps that are added later.
        pre_migrate.connect(guards.announce_migration, sender=self, dispatch_uid="audit-migrating")
        post_migrate.connect(guards.attach, sender=self, dispatch_uid="audit-guards")
