
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('operations', '0004_grades'),
        ('runs', '0005_control'),
        ('tenancy', '0004_control_runs'),
    ]

    operations = [
        migrations.AddField(
            model_name='operation',
            name='reopened_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='operation',
            name='reopened_by',
            field=models.CharField(blank=True, max_length=120),
        ),
        migrations.AddConstraint(
            model_name='finding',
            constraint=models.UniqueConstraint(condition=models.Q(('source', 'answer')), fields=('tenant', 'operation', 'attempt'), name='finding_answer_once'),
        ),
        migrations.AddConstraint(
            model_name='operation',
            constraint=models.CheckConstraint(condition=models.Q(('reopened_at__isnull', True), models.Q(('status__in', ['cancelled', 'expired', 'failed', 'rejected', 'succeeded']), models.Q(('reopened_by', ''), _negated=True)), _connector='OR'), name='operation_reopened_by_whom_after_its_end'),
        ),
    ]
