from django.apps import AppConfig


class ControlPlaneConfig(AppConfig):
    """Commands and system checks of the whole project."""

    name = "controlplane"
    label = "controlplane"

    def ready(self) -> None:
        from controlplane import checks  # noqa: F401 - registers itself
