import agentops.kernel.clock
import agentops.kernel.ids
import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('tenancy', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Slot',
            fields=[
                ('tenant', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, primary_key=True, related_name='+', serialize=False, to='tenancy.tenant')),
                ('served_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('deficit', models.IntegerField(default=0)),
                ('given_microusd', models.BigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name='AgentRelease',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('agent', models.CharField(max_length=40)),
                ('digest', models.CharField(max_length=80)),
                ('manifest', models.JSONField()),
                ('created_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('tenant', 'id'), name='agentrelease_tenant_id'), models.UniqueConstraint(fields=('tenant', 'agent', 'digest'), name='agentrelease_once')],
            },
        ),
        migrations.CreateModel(
            name='Conversation',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('principal', models.CharField(max_length=80)),
                ('external_id', models.CharField(max_length=120)),
                ('created_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('data_key', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.datakey')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('tenant', 'id'), name='conversation_tenant_id'), models.UniqueConstraint(fields=('tenant', 'principal', 'external_id'), name='conversation_once')],
            },
        ),
        migrations.CreateModel(
            name='AgentRun',
            fields=[
                ('version', models.IntegerField(default=0)),
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('actor', models.CharField(max_length=120)),
                ('principal', models.CharField(max_length=80)),
                ('channel', models.CharField(max_length=16)),
                ('agent', models.CharField(max_length=40)),
                ('pool', models.CharField(default='default', max_length=32)),
                ('status', models.CharField(choices=[('queued', 'Queued'), ('running', 'Running'), ('waiting_for_approval', 'Waiting For Approval'), ('completed', 'Completed'), ('failed', 'Failed'), ('cancelled', 'Cancelled')], default='queued', max_length=24)),
                ('ending', models.CharField(blank=True, max_length=16)),
                ('ending_actor', models.CharField(blank=True, max_length=120)),
                ('ending_reason', models.CharField(blank=True, max_length=500)),
                ('blocked_on', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=16), default=list)),
                ('open_effects', models.IntegerField(default=0)),
                ('sealed_input', models.BinaryField()),
                ('sealed_result', models.BinaryField(null=True)),
                ('parent_step', models.CharField(blank=True, max_length=200)),
                ('detached', models.BooleanField(default=False)),
                ('dedupe_key', models.CharField(max_length=120, null=True)),
                ('priority', models.SmallIntegerField(default=0)),
                ('concurrency_key', models.CharField(blank=True, max_length=120)),
                ('concurrency_limit', models.PositiveSmallIntegerField(default=1)),
                ('metadata', models.JSONField(default=dict)),
                ('budget_microusd', models.BigIntegerField()),
                ('spent_microusd', models.BigIntegerField(default=0)),
                ('reserved_microusd', models.BigIntegerField(default=0)),
                ('slice_microusd', models.BigIntegerField(null=True)),
                ('given_microusd', models.BigIntegerField(default=0)),
                ('max_steps', models.PositiveIntegerField()),
                ('deadline_at', models.DateTimeField(null=True)),
                ('steps_taken', models.PositiveIntegerField(default=0)),
                ('last_event_seq', models.PositiveIntegerField(default=0)),
                ('inbox_seq', models.PositiveIntegerField(default=0)),
                ('inbox_taken', models.PositiveIntegerField(default=0)),
                ('lease_owner', models.CharField(max_length=64, null=True)),
                ('lease_epoch', models.PositiveIntegerField(default=0)),
                ('lease_expires_at', models.DateTimeField(null=True)),
                ('ready_at', models.DateTimeField(db_default=agentops.kernel.clock.Now(), null=True)),
                ('paused_at', models.DateTimeField(null=True)),
                ('paused_by', models.CharField(blank=True, max_length=120)),
                ('pause_reason', models.CharField(blank=True, max_length=500)),
                ('needs', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=120), default=list)),
                ('crash_count', models.PositiveSmallIntegerField(default=0)),
                ('cancel_requested_at', models.DateTimeField(null=True)),
                ('error_code', models.CharField(blank=True, max_length=60)),
                ('error_detail', models.CharField(blank=True, max_length=500)),
                ('trace_id', models.CharField(max_length=32)),
                ('created_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('started_at', models.DateTimeField(null=True)),
                ('finished_at', models.DateTimeField(null=True)),
                ('aftermath', models.BooleanField(default=False)),
                ('data_key', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.datakey')),
                ('parent', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='children', to='runs.agentrun')),
                ('release', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='runs.agentrelease')),
                ('retry_of', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='retries', to='runs.agentrun')),
                ('root', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='runs.agentrun')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='runs', to='tenancy.tenant')),
                ('conversation', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='runs', to='runs.conversation')),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('paused_at__isnull', True), ('ready_at__isnull', False)), fields=['pool', 'tenant', 'priority', 'ready_at'], name='run_ready'), models.Index(condition=models.Q(('ready_at__isnull', False)), fields=['ready_at'], name='run_due'), models.Index(condition=models.Q(('ending', 'cancelled'), ('finished_at__isnull', True)), fields=['cancel_requested_at'], name='run_cancelling'), models.Index(condition=models.Q(models.Q(('concurrency_key', ''), _negated=True), ('finished_at__isnull', True)), fields=['tenant', 'concurrency_key', 'priority', 'ready_at'], name='run_keyed'), models.Index(condition=models.Q(('aftermath', True), ('finished_at__isnull', False)), fields=['finished_at'], name='run_aftermath'), models.Index(condition=models.Q(('lease_owner__isnull', False)), fields=['lease_owner'], name='run_leased_by'), models.Index(condition=models.Q(('lease_owner__isnull', False)), fields=['tenant'], name='run_leased_of'), models.Index(fields=['tenant', '-created_at', '-id'], name='run_newest'), models.Index(fields=['tenant', 'status', '-created_at', '-id'], name='run_newest_by_status'), models.Index(condition=models.Q(('deadline_at__isnull', False), ('finished_at__isnull', True)), fields=['deadline_at'], name='run_deadline'), models.Index(condition=models.Q(('needs', []), _negated=True), fields=['pool'], name='run_needs_something')],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'id'), name='run_tenant_id'), models.UniqueConstraint(fields=('tenant', 'retry_of'), name='run_retried_once'), models.UniqueConstraint(condition=models.Q(('parent__isnull', False)), fields=('tenant', 'parent', 'parent_step'), name='run_child_once'), models.CheckConstraint(condition=models.Q(('given_microusd__gte', 0), ('reserved_microusd__gte', 0), models.Q(('slice_microusd__isnull', True), ('slice_microusd__gte', 0), _connector='OR')), name='run_budget_not_negative'), models.UniqueConstraint(condition=models.Q(('status__in', ['cancelled', 'completed', 'failed']), _negated=True), fields=('tenant', 'agent', 'dedupe_key'), name='run_dedupe_key_active_once'), models.CheckConstraint(condition=models.Q(('status__in', ['queued', 'running', 'waiting_for_approval', 'completed', 'failed', 'cancelled'])), name='run_status_known'), models.CheckConstraint(condition=models.Q(('ending__in', ['', 'cancelled', 'failed'])), name='run_ending_known'), models.CheckConstraint(condition=models.Q(models.Q(('status__in', ['cancelled', 'completed', 'failed']), _negated=True), ('open_effects', 0), _connector='OR'), name='run_ends_without_open_effects'), models.CheckConstraint(condition=models.Q(models.Q(('status__in', ['cancelled', 'completed', 'failed']), _negated=True), models.Q(('lease_owner__isnull', True), ('ready_at__isnull', True)), _connector='OR'), name='run_ends_without_lease'), models.CheckConstraint(condition=models.Q(('ending', ''), ('lease_owner__isnull', True), _connector='OR'), name='run_ending_holds_no_lease'), models.CheckConstraint(condition=models.Q(('status__in', ['cancelled', 'completed', 'failed']), ('finished_at__isnull', True), _connector='XOR'), name='run_finished_iff_terminal'), models.CheckConstraint(condition=models.Q(('open_effects__gte', 0)), name='run_open_effects_not_negative'), models.CheckConstraint(condition=models.Q(('lease_owner__isnull', True), ('lease_expires_at__isnull', False), _connector='XOR'), name='run_lease_whole'), models.CheckConstraint(condition=models.Q(('inbox_taken__lte', models.F('inbox_seq'))), name='run_inbox_taken_exists'), models.CheckConstraint(condition=models.Q(('paused_at__isnull', True), models.Q(('paused_by', ''), _negated=True), _connector='XOR'), name='run_paused_by_somebody')],
            },
        ),
        migrations.CreateModel(
            name='BusyCall',
            fields=[
                ('pk', models.CompositePrimaryKey('run_id', 'key', blank=True, editable=False, primary_key=True, serialize=False)),
                ('key', models.CharField(max_length=200)),
                ('worker', models.CharField(max_length=64)),
                ('seen_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('run', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='busy_calls', to='runs.agentrun')),
                ('tenant', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
        ),
        migrations.CreateModel(
            name='IdempotencyKey',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('caller', models.CharField(max_length=80)),
                ('route', models.CharField(max_length=80)),
                ('key', models.CharField(max_length=255)),
                ('fingerprint', models.CharField(max_length=80)),
                ('response_status', models.PositiveSmallIntegerField()),
                ('response_headers', models.JSONField(default=dict)),
                ('sealed_body', models.BinaryField()),
                ('created_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('expires_at', models.DateTimeField()),
                ('run', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='runs.agentrun')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('tenant', 'caller', 'route', 'key'), name='idempotencykey_once')],
            },
        ),
        migrations.CreateModel(
            name='InboxMessage',
            fields=[
                ('pk', models.CompositePrimaryKey('run_id', 'n', blank=True, editable=False, primary_key=True, serialize=False)),
                ('n', models.PositiveIntegerField()),
                ('kind', models.CharField(max_length=16)),
                ('dedupe_key', models.CharField(max_length=120, null=True)),
                ('sealed_body', models.BinaryField()),
                ('at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('run', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='inbox', to='runs.agentrun')),
                ('tenant', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('run', 'kind', 'dedupe_key'), name='inbox_dedupe_once')],
            },
        ),
        migrations.CreateModel(
            name='RunEvent',
            fields=[
                ('pk', models.CompositePrimaryKey('run_id', 'seq', blank=True, editable=False, primary_key=True, serialize=False)),
                ('seq', models.PositiveIntegerField()),
                ('type', models.CharField(max_length=40)),
                ('at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('sealed_data', models.BinaryField()),
                ('run', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='events', to='runs.agentrun')),
                ('tenant', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
        ),
        migrations.CreateModel(
            name='Step',
            fields=[
                ('pk', models.CompositePrimaryKey('run_id', 'key', blank=True, editable=False, primary_key=True, serialize=False)),
                ('key', models.CharField(max_length=200)),
                ('kind', models.CharField(choices=[('model', 'Model'), ('tool', 'Tool'), ('step', 'Step'), ('operation', 'Operation')], max_length=16)),
                ('name', models.CharField(max_length=80)),
                ('status', models.CharField(choices=[('started', 'Started'), ('completed', 'Completed'), ('failed', 'Failed'), ('interrupted', 'Interrupted')], max_length=16)),
                ('attempt', models.PositiveSmallIntegerField(default=1)),
                ('input_digest', models.CharField(blank=True, max_length=80)),
                ('sealed_input', models.BinaryField(null=True)),
                ('sealed_result', models.BinaryField(null=True)),
                ('error_class', models.CharField(blank=True, max_length=80)),
                ('started_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('ended_at', models.DateTimeField(null=True)),
                ('model', models.CharField(blank=True, max_length=80)),
                ('input_tokens', models.PositiveIntegerField(default=0)),
                ('output_tokens', models.PositiveIntegerField(default=0)),
                ('cost_microusd', models.BigIntegerField(default=0)),
                ('run', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='steps', to='runs.agentrun')),
                ('tenant', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('status__in', ['started', 'completed', 'failed', 'interrupted'])), name='step_status_known'), models.CheckConstraint(condition=models.Q(('kind__in', ['model', 'tool', 'step', 'operation'])), name='step_kind_known'), models.CheckConstraint(condition=models.Q(models.Q(('status', 'completed'), _negated=True), models.Q(('ended_at__isnull', False), ('sealed_result__isnull', False)), _connector='OR'), name='step_completed_has_result')],
            },
        ),
        migrations.CreateModel(
            name='AgentPause',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('agent', models.CharField(max_length=40)),
                ('paused_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('paused_by', models.CharField(max_length=120)),
                ('reason', models.CharField(max_length=500)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('tenant', 'agent'), name='agentpause_once')],
            },
        ),
    ]
