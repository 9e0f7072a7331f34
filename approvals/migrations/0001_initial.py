import agentops.kernel.clock
import agentops.kernel.ids
import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('operations', '0001_initial'),
        ('tenancy', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Policy',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('action', models.CharField(max_length=60)),
                ('number', models.PositiveIntegerField()),
                ('rules', models.JSONField()),
                ('digest', models.CharField(max_length=90)),
                ('log_only', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('created_by', models.CharField(blank=True, max_length=120)),
                ('published_at', models.DateTimeField(null=True)),
                ('published_by', models.CharField(blank=True, max_length=120)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='policies', to='tenancy.tenant')),
            ],
            options={
                'verbose_name_plural': 'policies',
            },
        ),
        migrations.CreateModel(
            name='PolicyDecision',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('rule', models.CharField(max_length=60)),
                ('outcome', models.CharField(choices=[('allow', 'Allow'), ('require_approval', 'Require Approval'), ('deny', 'Deny')], max_length=20)),
                ('risk', models.CharField(choices=[('routine', 'Routine'), ('elevated', 'Elevated'), ('high', 'High')], max_length=12)),
                ('codes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=60))),
                ('input_digest', models.CharField(max_length=90)),
                ('log_only', models.BooleanField(default=False)),
                ('sealed_input', models.BinaryField(null=True)),
                ('at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('operation', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='policy_decisions', to='operations.operation')),
                ('policy', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='approvals.policy')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
        ),
        migrations.CreateModel(
            name='Approval',
            fields=[
                ('version', models.IntegerField(default=0)),
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('status', models.CharField(choices=[('requested', 'Requested'), ('approved', 'Approved'), ('rejected', 'Rejected'), ('expired', 'Expired'), ('revoked', 'Revoked'), ('withdrawn', 'Withdrawn'), ('superseded', 'Superseded')], default='requested', max_length=12)),
                ('action', models.CharField(max_length=60)),
                ('amount_minor', models.BigIntegerField(null=True)),
                ('currency', models.CharField(blank=True, max_length=3)),
                ('risk', models.CharField(choices=[('routine', 'Routine'), ('elevated', 'Elevated'), ('high', 'High')], max_length=12)),
                ('sealed_proposal', models.BinaryField()),
                ('proposal_digest', models.CharField(max_length=90)),
                ('sealed_grounds', models.BinaryField()),
                ('requesters', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=120))),
                ('group', models.CharField(blank=True, max_length=40)),
                ('escalate_to', models.CharField(blank=True, max_length=40)),
                ('escalated_at', models.DateTimeField(null=True)),
                ('required', models.PositiveSmallIntegerField(default=1)),
                ('hold_seconds', models.PositiveIntegerField()),
                ('expires_at', models.DateTimeField(null=True)),
                ('requested_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('round', models.PositiveSmallIntegerField(default=0)),
                ('extended_at', models.DateTimeField(null=True)),
                ('extended_by', models.CharField(blank=True, max_length=120)),
                ('notify_at', models.DateTimeField(null=True)),
                ('notified', models.CharField(blank=True, choices=[('asked', 'Asked'), ('reminder', 'Reminder'), ('escalated', 'Escalated')], max_length=12)),
                ('closed_at', models.DateTimeField(null=True)),
                ('closed_by', models.CharField(blank=True, max_length=120)),
                ('closed_reason', models.CharField(blank=True, max_length=60)),
                ('sealed_moved', models.BinaryField(null=True)),
                ('consumed_at', models.DateTimeField(null=True)),
                ('consumed_by', models.UUIDField(null=True)),
                ('data_key', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.datakey')),
                ('operation', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='approvals', to='operations.operation')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='approvals', to='tenancy.tenant')),
                ('policy_decision', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='approvals.policydecision')),
            ],
        ),
        migrations.CreateModel(
            name='ReviewLimit',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('group', models.CharField(blank=True, max_length=40)),
                ('action', models.CharField(blank=True, max_length=60)),
                ('currency', models.CharField(max_length=3)),
                ('each_minor', models.BigIntegerField()),
                ('day_minor', models.BigIntegerField(null=True)),
                ('reviewer', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='review_limits', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='review_limits', to='tenancy.tenant')),
            ],
        ),
        migrations.CreateModel(
            name='Decision',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('verdict', models.CharField(choices=[('approve', 'Approve'), ('reject', 'Reject')], max_length=8)),
                ('sealed_reason', models.BinaryField()),
                ('proposal_digest', models.CharField(max_length=90)),
                ('sealed_sheet', models.BinaryField(null=True)),
                ('seen_sheet_digest', models.CharField(blank=True, max_length=64)),
                ('groups', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=40), default=list)),
                ('limit_minor', models.BigIntegerField(null=True)),
                ('channel', models.CharField(max_length=16)),
                ('decided_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('approval', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name='decisions', to='approvals.approval')),
                ('reviewer', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='decisions', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('tenant', 'approval', 'reviewer'), name='decision_once_a_person'), models.CheckConstraint(condition=models.Q(('sealed_sheet__isnull', True), models.Q(('seen_sheet_digest', ''), _negated=True), _connector='XOR'), name='decision_sheet_with_its_digest')],
            },
        ),
        migrations.CreateModel(
            name='Notice',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('asked', 'Asked'), ('reminder', 'Reminder'), ('escalated', 'Escalated')], max_length=12)),
                ('made_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('due_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('tries', models.PositiveSmallIntegerField(default=0)),
                ('closed_at', models.DateTimeField(null=True)),
                ('outcome', models.CharField(blank=True, max_length=12)),
                ('approval', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name='notices', to='approvals.approval')),
                ('person', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('closed_at__isnull', True)), fields=['due_at'], name='notice_due')],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'approval', 'person', 'kind'), name='notice_once'), models.CheckConstraint(condition=models.Q(('closed_at__isnull', True), models.Q(('outcome', ''), _negated=True), _connector='XOR'), name='notice_closed_with_an_outcome')],
            },
        ),
        migrations.AddConstraint(
            model_name='policy',
            constraint=models.UniqueConstraint(fields=('tenant', 'id'), name='policy_tenant_id'),
        ),
        migrations.AddConstraint(
            model_name='policy',
            constraint=models.UniqueConstraint(fields=('tenant', 'action', 'number'), name='policy_number_once'),
        ),
        migrations.AddConstraint(
            model_name='policy',
            constraint=models.UniqueConstraint(condition=models.Q(('published_at__isnull', True)), fields=('tenant', 'action'), name='policy_one_draft'),
        ),
        migrations.AddIndex(
            model_name='policydecision',
            index=models.Index(fields=['operation'], name='policydecision_of_operation'),
        ),
        migrations.AddConstraint(
            model_name='policydecision',
            constraint=models.UniqueConstraint(fields=('tenant', 'id'), name='policydecision_tenant_id'),
        ),
        migrations.AddIndex(
            model_name='approval',
            index=models.Index(condition=models.Q(('status', 'requested')), fields=['tenant', 'expires_at'], name='approval_waiting'),
        ),
        migrations.AddIndex(
            model_name='approval',
            index=models.Index(condition=models.Q(('status', 'requested')), fields=['expires_at'], name='approval_expiring'),
        ),
        migrations.AddIndex(
            model_name='approval',
            index=models.Index(fields=['tenant', 'status', '-requested_at', '-id'], name='approval_newest'),
        ),
        migrations.AddIndex(
            model_name='approval',
            index=models.Index(fields=['operation', 'id'], name='approval_of_operation'),
        ),
        migrations.AddIndex(
            model_name='approval',
            index=models.Index(condition=models.Q(('status', 'requested')), fields=['requested_at'], name='approval_oldest'),
        ),
        migrations.AddIndex(
            model_name='approval',
            index=models.Index(condition=models.Q(('notify_at__isnull', False), ('status', 'requested')), fields=['notify_at'], name='approval_to_tell_of'),
        ),
        migrations.AddConstraint(
            model_name='approval',
            constraint=models.UniqueConstraint(fields=('tenant', 'id'), name='approval_tenant_id'),
        ),
        migrations.AddConstraint(
            model_name='approval',
            constraint=models.UniqueConstraint(condition=models.Q(('status', 'requested')), fields=('tenant', 'operation'), name='approval_open_once'),
        ),
        migrations.AddConstraint(
            model_name='approval',
            constraint=models.CheckConstraint(condition=models.Q(('status__in', ['requested', 'approved', 'rejected', 'expired', 'revoked', 'withdrawn', 'superseded'])), name='approval_status_known'),
        ),
        migrations.AddConstraint(
            model_name='approval',
            constraint=models.CheckConstraint(condition=models.Q(('status', 'requested'), ('closed_at__isnull', False), _connector='XOR'), name='approval_open_or_closed'),
        ),
        migrations.AddConstraint(
            model_name='approval',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('consumed_at__isnull', True), ('consumed_by__isnull', True)), models.Q(('consumed_at__isnull', False), ('consumed_by', models.F('operation_id')), ('status__in', ['approved', 'revoked', 'superseded', 'withdrawn'])), _connector='OR'), name='approval_consumed_once_by_its_operation'),
        ),
        migrations.AddConstraint(
            model_name='approval',
            constraint=models.CheckConstraint(condition=models.Q(('extended_at__isnull', True), models.Q(('extended_by', ''), _negated=True), _connector='XOR'), name='approval_extended_by_whom'),
        ),
        migrations.AddConstraint(
            model_name='approval',
            constraint=models.CheckConstraint(condition=models.Q(('required__gte', 1)), name='approval_required_positive'),
        ),
        migrations.AddConstraint(
            model_name='reviewlimit',
            constraint=models.UniqueConstraint(condition=models.Q(('reviewer__isnull', False)), fields=('tenant', 'reviewer', 'action', 'currency'), name='reviewlimit_once'),
        ),
        migrations.AddConstraint(
            model_name='reviewlimit',
            constraint=models.UniqueConstraint(condition=models.Q(('group', ''), _negated=True), fields=('tenant', 'group', 'action', 'currency'), name='reviewlimit_of_group_once'),
        ),
        migrations.AddConstraint(
            model_name='reviewlimit',
            constraint=models.CheckConstraint(condition=models.Q(('reviewer__isnull', True), ('group', ''), _connector='XOR'), name='reviewlimit_of_one_or_of_a_group'),
        ),
    ]
