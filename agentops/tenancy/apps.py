"""Tenants, people, tokens and keys."""

from django.apps import AppConfig


class TenancyConfig(AppConfig):
    name = "agentops.tenancy"
    label = "tenancy"
