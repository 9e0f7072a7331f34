"""Tenant keys, partitions, append-only evidence and final rows of operations."""

from django.db import migrations, models

from agentops.kernel.schema import append_only, final_status, partitioned, tenant_key


class Migration(migrations.Migration):
    dependencies = [("operations", "0001_initial"), ("runs", "0002_walls")]
    operations = [
        partitioned("operations_attempt", "operation_id"),
        partitioned("operations_finding", "operation_id"),
        # A partitioned copy would lose the name of an index of its own, and refusals are told by it.
        migrations.AddConstraint(
            model_name="finding",
            constraint=models.UniqueConstraint(
                condition=models.Q(source="answer"),
                fields=["tenant", "operation", "attempt"],
                name="finding_answer_once",
            ),
        ),
        tenant_key("operations_target", "connection_id", "operations_connection"),
        tenant_key("operations_operation", "run_id", "runs_agentrun"),
        tenant_key("operations_operation", "target_id", "operations_target"),
        tenant_key("operations_operation", "connection_id", "operations_connection"),
        tenant_key("operations_operation", "data_key_id", "tenancy_datakey"),
        tenant_key("operations_operation", "previous_id", "operations_operation"),
        tenant_key("operations_interest", "run_id", "runs_agentrun"),
        tenant_key("operations_interest", "operation_id", "operations_operation"),
        tenant_key("operations_attempt", "operation_id", "operations_operation"),
        tenant_key("operations_finding", "operation_id", "operations_operation"),
        tenant_key("operations_incident", "connection_id", "operations_connection"),
        tenant_key("operations_operation", "reverses_id", "operations_operation"),
        tenant_key("operations_hook", "connection_id", "operations_connection"),
        tenant_key("operations_unmatched", "connection_id", "operations_connection"),
        tenant_key("operations_unmatched", "operation_id", "operations_operation"),
        tenant_key("operations_settlement", "operation_id", "operations_operation"),
        tenant_key("operations_sweep", "connection_id", "operations_connection"),
        append_only("operations_attempt"),
        append_only("operations_finding"),
        final_status("operations_operation", "succeeded", "failed", "rejected", "cancelled", "expired"),
    ]
