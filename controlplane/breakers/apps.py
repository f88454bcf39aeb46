from django.apps import AppConfig


class BreakersConfig(AppConfig):
    name = "controlplane.breakers"
    label = "breakers"
