"""The audit log."""

from django.apps import AppConfig


class AuditConfig(AppConfig):
    name = "agentops.audit"
    label = "audit"
