from django.apps import AppConfig
from django.db.backends.signals import connection_created


class ControlPlaneConfig(AppConfig):
    """Commands and system checks of the whole project."""

    name = "controlplane"
    label = "controlplane"

    def ready(self) -> None:
        from controlplane import checks  # noqa: F401 - registers itself
        from controlplane.postgres import check_timeouts

        connection_created.connect(check_timeouts, dispatch_uid="timeouts")
