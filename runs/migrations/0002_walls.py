"""Tenant keys, partitions and final rows of runs."""

from django.db import migrations

from agentops.kernel.schema import final_status, partitioned, tenant_key


class Migration(migrations.Migration):
    dependencies = [("runs", "0001_initial")]
    operations = [
        partitioned("runs_step", "run_id"),
        partitioned("runs_runevent", "run_id"),
        tenant_key("runs_conversation", "data_key_id", "tenancy_datakey"),
        tenant_key("runs_agentrun", "release_id", "runs_agentrelease"),
        tenant_key("runs_agentrun", "data_key_id", "tenancy_datakey"),
        tenant_key("runs_agentrun", "conversation_id", "runs_conversation"),
        tenant_key("runs_agentrun", "parent_id", "runs_agentrun"),
        tenant_key("runs_agentrun", "root_id", "runs_agentrun"),
        tenant_key("runs_agentrun", "retry_of_id", "runs_agentrun"),
        tenant_key("runs_agentrun", "rerun_of_id", "runs_agentrun"),
        tenant_key("runs_step", "run_id", "runs_agentrun"),
        tenant_key("runs_runevent", "run_id", "runs_agentrun"),
        tenant_key("runs_inboxmessage", "run_id", "runs_agentrun"),
        tenant_key("runs_idempotencykey", "run_id", "runs_agentrun"),
        tenant_key("runs_busycall", "run_id", "runs_agentrun"),
        final_status("runs_agentrun", "completed", "failed", "cancelled"),
    ]
