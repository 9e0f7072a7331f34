import agentops.kernel.clock
import agentops.kernel.ids
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('tenancy', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Outbox',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('type', models.CharField(max_length=40)),
                ('sealed_body', models.BinaryField()),
                ('created_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('next_attempt_at', models.DateTimeField(db_default=agentops.kernel.clock.Now(), null=True)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
            ],
            options={
                'verbose_name_plural': 'outbox',
                'constraints': [models.UniqueConstraint(fields=('tenant', 'id'), name='outbox_tenant_id')],
            },
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('number', models.PositiveSmallIntegerField()),
                ('answered', models.PositiveSmallIntegerField(null=True)),
                ('at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenancy.tenant')),
                ('message', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name='deliveries', to='webhooks.outbox')),
            ],
            options={
                'verbose_name_plural': 'deliveries',
                'constraints': [models.UniqueConstraint(fields=('tenant', 'message', 'number'), name='delivery_once')],
            },
        ),
    ]
