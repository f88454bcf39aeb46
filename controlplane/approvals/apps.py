from django.apps import AppConfig


class ApprovalsConfig(AppConfig):
    name = "controlplane.approvals"
    label = "approvals"
