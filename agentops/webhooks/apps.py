"""Webhooks to tenants: the records."""

from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "agentops.webhooks"
    label = "webhooks"
