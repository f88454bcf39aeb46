from django.apps import AppConfig


class SharesConfig(AppConfig):
    name = "controlplane.shares"
    label = "shares"
