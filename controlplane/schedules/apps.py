from django.apps import AppConfig


class SchedulesConfig(AppConfig):
    name = "controlplane.schedules"
    label = "schedules"
