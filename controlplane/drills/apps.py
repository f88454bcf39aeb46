from django.apps import AppConfig


class DrillsConfig(AppConfig):
    name = "controlplane.drills"
    label = "drills"
