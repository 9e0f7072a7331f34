"""Data keys: one for a subject, wrapped by its tenant's; erasure leaves the rows and takes what they say."""

import pytest
from django.db import IntegrityError, transaction

from agentops.kernel import sealed
from agentops.kernel.clock import Now
from agentops.kernel.sealed import CannotUnseal, Place
from agentops.tenancy import vault
from agentops.tenancy.models import DataKey
from runs import queries
from runs.models import AgentRun
from tests import factories

pytestmark = pytest.mark.django_db
HERE = Place("a", "b", "c")


def test_each_run_has_a_key_of_its_own_and_its_words_open_with_it_alone():
    tenant = factories.tenant()
    first, second = factories.run(tenant, "one"), factories.run(tenant, "two")
    assert first.data_key_id != second.data_key_id
    vault.forget()
    assert queries.input_text(first) == "one"
    AgentRun.objects.filter(pk=first.pk).update(sealed_input=second.sealed_input)
    with pytest.raises(CannotUnseal):
        queries.input_text(AgentRun.objects.get(pk=first.pk))


def test_what_was_erased_opens_for_nobody_while_the_row_stays():
    tenant = factories.tenant()
    run, other = factories.run(tenant, "one"), factories.run(tenant, "two")
    DataKey.objects.filter(pk=run.data_key_id).update(wrapped=None, erased_at=Now())
    vault.forget()
    with pytest.raises(CannotUnseal, match="erased"):
        queries.input_text(run)
    assert queries.input_text(other) == "two"


def test_a_key_is_wrapped_until_it_is_erased_and_not_beyond():
    run = factories.run(factories.tenant())
    for change in ({"wrapped": None}, {"erased_at": Now()}):
        with pytest.raises(IntegrityError), transaction.atomic():
            DataKey.objects.filter(pk=run.data_key_id).update(**change)


def test_a_wrapped_key_that_is_copied_to_another_row_does_not_open():
    tenant = factories.tenant()
    first, second = factories.run(tenant), factories.run(tenant)
    stolen = DataKey.objects.get(pk=first.data_key_id)
    DataKey.objects.filter(pk=second.data_key_id).update(wrapped=stolen.wrapped)
    vault.forget()
    with pytest.raises(CannotUnseal):
        queries.input_text(second)


def test_another_master_key_opens_nothing_unless_the_old_one_is_still_named(settings):
    tenant = factories.tenant()
    run, old = factories.run(tenant, "one"), settings.AGENTOPS_MASTER_KEYS
    import base64

    new = base64.b64encode(sealed.new_secret()).decode()
    settings.AGENTOPS_MASTER_KEYS = new
    vault.forget()
    with pytest.raises(CannotUnseal, match="AGENTOPS_MASTER_KEYS"):
        queries.input_text(run)
    settings.AGENTOPS_MASTER_KEYS = f"{new},{old}"
    assert queries.input_text(run) == "one"


def test_idempotency_keys_of_two_tenants_and_of_two_generations_differ():
    from operations.services import idempotency_key

    first, second = factories.tenant(), factories.tenant()
    made = {
        idempotency_key(tenant.id, "k", generation) for tenant in (first, second) for generation in (0, 1)
    }
    assert len(made) == 4
    assert idempotency_key(first.id, "k", 0) in made
