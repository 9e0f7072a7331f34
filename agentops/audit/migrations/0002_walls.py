"""The audit log is append-only."""

from django.db import migrations

from agentops.kernel.schema import append_only


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]
    operations = [append_only("audit_auditentry"), append_only("audit_auditblock")]
