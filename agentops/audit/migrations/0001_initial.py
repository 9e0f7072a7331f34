import agentops.audit.models
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
            name='AuditBlock',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveBigIntegerField()),
                ('entries', django.contrib.postgres.fields.ArrayField(base_field=models.UUIDField())),
                ('root', models.BinaryField(max_length=32)),
                ('previous', models.BinaryField(max_length=32)),
                ('signature', models.BinaryField(max_length=64)),
                ('key_name', models.CharField(max_length=40)),
                ('sealed_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('tenant', 'number'), name='auditblock_number_once')],
            },
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('transaction_id', agentops.audit.models.TransactionIdField(db_default=agentops.audit.models.CurrentTransaction(), editable=False)),
                ('at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('actor', models.CharField(max_length=120)),
                ('on_behalf_of', models.CharField(blank=True, max_length=120)),
                ('channel', models.CharField(max_length=16)),
                ('verb', models.CharField(max_length=60)),
                ('object_type', models.CharField(max_length=32)),
                ('object_id', models.CharField(max_length=64)),
                ('security', models.BooleanField(default=False)),
                ('before_digest', models.CharField(blank=True, max_length=64)),
                ('after_digest', models.CharField(blank=True, max_length=64)),
                ('sealed_detail', models.BinaryField()),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
            options={
                'verbose_name_plural': 'audit entries',
                'indexes': [models.Index(fields=['tenant', '-id'], name='auditentry_newest'), models.Index(fields=['tenant', 'object_type', 'object_id'], name='auditentry_object')],
            },
        ),
    ]
