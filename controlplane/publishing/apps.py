from django.apps import AppConfig


class PublishingConfig(AppConfig):
    name = "controlplane.publishing"
    label = "publishing"
