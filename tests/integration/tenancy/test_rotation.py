"""Keys rotate while everything that was sealed stays readable, and what was promised to a provider stays the same."""

import base64
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from agentops.audit.models import AuditEntry
from agentops.kernel import sealed
from agentops.kernel.clock import Now
from agentops.kernel.sealed import CannotUnseal
from agentops.tenancy import rotation, vault
from agentops.tenancy.models import DataKey
from operations.services import idempotency_key
from runs import queries
from tests import factories

pytestmark = pytest.mark.django_db


def rotate(*options: str) -> str:
    said = StringIO()
    call_command("rotate_keys", *options, stdout=said)
    vault.forget()
    return said.getvalue()


def new_master() -> str:
    return base64.b64encode(sealed.new_secret()).decode()


def test_a_new_master_key_takes_over_and_the_old_one_may_leave(settings):
    run, old = factories.run(factories.tenant(), "one"), settings.AGENTOPS_MASTER_KEYS
    new = new_master()
    settings.AGENTOPS_MASTER_KEYS = f"{new},{old}"
    said = rotate()
    assert "the others may leave AGENTOPS_MASTER_KEYS" in said
    settings.AGENTOPS_MASTER_KEYS = new
    assert queries.input_text(run) == "one"
    assert "nothing to do" in rotate()
    settings.AGENTOPS_MASTER_KEYS = old
    vault.forget()
    with pytest.raises(CannotUnseal):
        queries.input_text(run)


def test_a_missing_master_key_is_told_with_the_next_step(settings):
    factories.tenant()
    settings.AGENTOPS_MASTER_KEYS = new_master()
    vault.forget()
    with pytest.raises(CommandError, match="Add the key that is missing"):
        rotate()


def test_a_tenant_gets_a_new_key_and_every_data_key_is_wrapped_with_it(monkeypatch):
    monkeypatch.setattr(rotation, "BATCH", 2)
    tenant, other = factories.tenant(), factories.tenant()
    runs = [factories.run(tenant, str(number)) for number in range(5)]
    before, untouched = vault.for_tenant(tenant.id), vault.for_tenant(other.id)
    entry = AuditEntry.objects.filter(tenant=tenant).first()
    promised = idempotency_key(tenant.id, "k", 0)
    said = rotate("--tenant-keys", "--tenant", tenant.slug)
    assert f"data keys of {tenant.slug}: 4 of 6" in said
    after = vault.for_tenant(tenant.id)
    assert after.id != before.id
    assert after.secret != before.secret
    assert vault.for_tenant(other.id) == untouched
    wrappers = DataKey.objects.filter(tenant=tenant, subject__startswith="run:")
    assert set(wrappers.values_list("wrapped_by", flat=True)) == {after.id}
    assert [queries.input_text(run) for run in runs] == [str(number) for number in range(5)]
    assert idempotency_key(tenant.id, "k", 0) == promised
    place = sealed.Place("audit_auditentry", str(entry.id), "detail")
    assert vault.unseal(place, entry.sealed_detail)  # what the retired key has sealed still opens
    assert AuditEntry.objects.filter(tenant=tenant, verb="keys.rotated").count() == 1
    assert queries.input_text(factories.run(tenant, "new")) == "new"


def test_a_rotation_that_was_stopped_is_finished_by_the_next_start(monkeypatch):
    monkeypatch.setattr(rotation, "BATCH", 1)
    tenant = factories.tenant()
    runs = [factories.run(tenant, str(number)) for number in range(3)]
    rotation.new_tenant_key(tenant)
    next(rotation.rewrap_under_tenant_key(tenant))  # here it was killed
    vault.forget()
    assert [queries.input_text(run) for run in runs] == ["0", "1", "2"]
    keys = vault.for_tenant(tenant.id)
    rotate()
    assert vault.for_tenant(tenant.id) == keys
    assert not rotation.under_retired_key(tenant).exists()


def test_what_was_erased_stays_erased():
    tenant = factories.tenant()
    run = factories.run(tenant, "one")
    DataKey.objects.filter(pk=run.data_key_id).update(wrapped=None, erased_at=Now())
    vault.forget()
    rotate("--tenant-keys")
    assert DataKey.objects.get(pk=run.data_key_id).wrapped is None
    with pytest.raises(CannotUnseal, match="erased"):
        queries.input_text(run)


def test_a_tenant_that_is_not_there_is_told_with_those_that_are():
    factories.tenant()
    with pytest.raises(CommandError, match="There is no tenant nowhere; there are: tenant-"):
        rotate("--tenant", "nowhere")
