"""Tenant keys, append-only answers and final rows of approvals."""

from django.db import migrations

from agentops.kernel.schema import append_only, final_status, tenant_key, unchanging


class Migration(migrations.Migration):
    dependencies = [("approvals", "0001_initial"), ("operations", "0002_walls")]
    operations = [
        tenant_key("approvals_policydecision", "operation_id", "operations_operation"),
        tenant_key("approvals_policydecision", "policy_id", "approvals_policy"),
        tenant_key("approvals_approval", "operation_id", "operations_operation"),
        tenant_key("approvals_approval", "data_key_id", "tenancy_datakey"),
        tenant_key("approvals_approval", "policy_decision_id", "approvals_policydecision"),
        tenant_key("approvals_decision", "approval_id", "approvals_approval"),
        unchanging("approvals_policy", "published_at"),
        tenant_key("approvals_notice", "approval_id", "approvals_approval"),
        append_only("approvals_policydecision"),
        append_only("approvals_decision"),
        final_status(
            "approvals_approval", "rejected", "expired", "revoked", "withdrawn", "superseded"
        ),
    ]
