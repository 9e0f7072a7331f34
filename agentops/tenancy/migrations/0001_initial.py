import agentops.kernel.clock
import agentops.kernel.ids
import django.contrib.auth.models
import django.contrib.auth.validators
import django.contrib.postgres.fields
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('kernel', '0001_functions'),
    ]

    operations = [
        migrations.CreateModel(
            name='User',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, unique=True, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('email', models.EmailField(blank=True, max_length=254)),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'verbose_name': 'user',
                'verbose_name_plural': 'users',
                'abstract': False,
            },
            managers=[
                ('objects', django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name='Tenant',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('slug', models.SlugField(max_length=40, unique=True)),
                ('name', models.CharField(max_length=120)),
                ('state', models.CharField(choices=[('active', 'Active'), ('suspended', 'Suspended')], default='active', max_length=16)),
                ('timezone', models.CharField(default='UTC', max_length=64)),
                ('weight', models.PositiveSmallIntegerField(default=1)),
                ('concurrent_runs', models.PositiveIntegerField(default=100)),
                ('open_runs', models.PositiveIntegerField(default=100000)),
                ('budget_microusd', models.BigIntegerField(blank=True, null=True)),
                ('created_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
            ],
            options={
                'permissions': [('view_runs', 'see runs'), ('cancel_runs', 'cancel runs'), ('control_runs', 'start, pause, resume and retry runs; pause agents'), ('view_operations', 'see operations'), ('settle_operations', 'settle operations whose outcome is unknown'), ('view_approvals', 'see proposals'), ('decide_approvals', 'decide proposals'), ('view_audit', 'see the audit log'), ('manage_policies', 'write policies'), ('manage_access', 'manage people and tokens')],
                'constraints': [models.CheckConstraint(condition=models.Q(('state__in', ['active', 'suspended'])), name='tenant_state_known'), models.CheckConstraint(condition=models.Q(('weight__gte', 1)), name='tenant_weight_positive')],
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role', models.CharField(choices=[('reviewer', 'Reviewer'), ('lead', 'Lead'), ('engineer', 'Engineer'), ('policy_owner', 'Policy Owner'), ('tenant_admin', 'Tenant Admin'), ('auditor', 'Auditor')], max_length=16)),
                ('created_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='memberships', to='tenancy.tenant')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('tenant', 'user'), name='membership_once')],
            },
        ),
        migrations.CreateModel(
            name='DataKey',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('subject', models.CharField(max_length=120)),
                ('wrapped', models.BinaryField(null=True)),
                ('wrapped_by', models.UUIDField(null=True)),
                ('created_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('retired_at', models.DateTimeField(null=True)),
                ('erased_at', models.DateTimeField(null=True)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='data_keys', to='tenancy.tenant')),
            ],
            options={
                'indexes': [models.Index(fields=['tenant', 'wrapped_by', 'id'], name='datakey_wrapped_by')],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'id'), name='datakey_tenant_id'), models.UniqueConstraint(condition=models.Q(('erased_at__isnull', True), ('retired_at__isnull', True)), fields=('tenant', 'subject'), name='datakey_subject_once'), models.CheckConstraint(condition=models.Q(models.Q(('erased_at__isnull', True), ('wrapped__isnull', False)), models.Q(('erased_at__isnull', False), ('wrapped__isnull', True)), _connector='OR'), name='datakey_wrapped_until_erased')],
            },
        ),
        migrations.CreateModel(
            name='ApiToken',
            fields=[
                ('id', models.UUIDField(default=agentops.kernel.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=80)),
                ('prefix', models.CharField(max_length=12)),
                ('hash', models.BinaryField(max_length=32, unique=True)),
                ('scopes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=32))),
                ('created_at', models.DateTimeField(db_default=agentops.kernel.clock.Now())),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('last_used_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('person', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='tokens', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='tokens', to='tenancy.tenant')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('tenant', 'id'), name='apitoken_tenant_id'), models.UniqueConstraint(fields=('tenant', 'name'), name='apitoken_name_once')],
            },
        ),
    ]
