"""Wrapping keys anew: under the first master key, and under a new tenant's key, a batch at a time.

What a key has sealed stays as it is: rows are append-only. A key that was rotated out still opens them.
"""

from collections.abc import Iterator

from django.db import transaction
from django.db.models import BinaryField, F, Func, QuerySet

from agentops.kernel import sealed
from agentops.kernel.clock import Now
from agentops.kernel.ids import uuid7
from agentops.kernel.sealed import Key

from . import vault
from .models import DataKey, Tenant

BATCH = 200


def under_another_master() -> QuerySet[DataKey]:
    """Tenants' keys, retired ones too, that need a master key other than the first; erased ones need none."""
    # The master's id stands in the envelope, behind its one byte of version.
    wrapper = Func(
        F("wrapped"), template="substring(%(expressions)s from 2 for 16)", output_field=BinaryField()
    )
    keys = DataKey.objects.filter(wrapped_by=None, erased_at=None).annotate(wrapper=wrapper)
    return keys.exclude(wrapper=vault.master_keys()[0].id.bytes).order_by("id")


def rewrap_under_first_master() -> Iterator[int]:
    """Wrap every tenant's key with the first master key; yields how many each batch moved."""
    master = vault.master_keys()[0]
    while moved := _rewrap(under_another_master(), master):
        yield moved


@transaction.atomic
def new_tenant_key(tenant: Tenant) -> Key:
    """A fresh key that wraps and seals for `tenant` from now on; the one before is retired and still opens."""
    DataKey.objects.filter(tenant=tenant, subject="tenant", retired_at=None).update(retired_at=Now())
    key = Key(uuid7(), sealed.new_secret())
    master = vault.master_keys()[0]
    DataKey.objects.create(
        id=key.id,
        tenant=tenant,
        subject="tenant",
        wrapped=sealed.seal_bytes(master, vault.wrapped_place(key.id), key.secret),
    )
    vault.forget()
    return key


def under_retired_key(tenant: Tenant) -> QuerySet[DataKey]:
    """The tenant's data keys that a key other than its present one wraps."""
    present = DataKey.objects.get(tenant=tenant, subject="tenant", erased_at=None, retired_at=None)
    wrapped = DataKey.objects.filter(tenant=tenant, wrapped_by__isnull=False, erased_at=None)
    return wrapped.exclude(wrapped_by=present.id).order_by("id")


def rewrap_under_tenant_key(tenant: Tenant) -> Iterator[int]:
    """Wrap the tenant's data keys with its present key; yields how many each batch moved."""
    present = DataKey.objects.get(tenant=tenant, subject="tenant", erased_at=None, retired_at=None)
    key = vault.opened(present.id, present)
    while moved := _rewrap(under_retired_key(tenant), key, wrapped_by=present):
        yield moved


@transaction.atomic
def _rewrap(rows: QuerySet[DataKey], wrapping: Key, wrapped_by: DataKey | None = None) -> int:
    """One batch, under lock: an erasure that comes meanwhile waits, and then finds nothing to undo."""
    batch = list(rows.select_for_update(no_key=True)[:BATCH])
    for row in batch:
        row.wrapped = sealed.seal_bytes(
            wrapping, vault.wrapped_place(row.id), vault.opened(row.id, row).secret
        )
        row.wrapped_by = wrapped_by.id if wrapped_by else None
    DataKey.objects.bulk_update(batch, ["wrapped", "wrapped_by"])
    return len(batch)
