"""Tenant keys of webhooks."""

from django.db import migrations

from agentops.kernel.schema import tenant_key


class Migration(migrations.Migration):
    dependencies = [("webhooks", "0001_initial")]
    operations = [tenant_key("webhooks_delivery", "message_id", "webhooks_outbox")]
