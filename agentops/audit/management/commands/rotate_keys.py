"""Rotate the keys that wrap data keys: master keys, and on request the tenants' own."""

from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from agentops.audit.entries import Actor, record
from agentops.kernel.sealed import CannotUnseal
from agentops.tenancy import rotation
from agentops.tenancy.models import Tenant

OPERATOR = Actor("operator", "cli")


class Command(BaseCommand):
    help = (
        "Wrap every tenant's key with the first key of AGENTOPS_MASTER_KEYS; with --tenant-keys also give tenants a new "
        "key of their own and wrap their data keys with it. Everything else goes on meanwhile. Stopped half-way, it is "
        "finished by the next start without options."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant-keys", action="store_true", help="also rotate the tenants' own keys")
        parser.add_argument("--tenant", metavar="SLUG", help="only that tenant's data keys")

    def handle(self, *args: Any, tenant_keys: bool, tenant: str | None, **options: Any) -> None:
        tenants = Tenant.objects.order_by("id")
        if tenant is not None:
            tenants = tenants.filter(slug=tenant)
            if not tenants:
                known = ", ".join(Tenant.objects.order_by("slug").values_list("slug", flat=True)[:10])
                raise CommandError(f"There is no tenant {tenant}; there are: {known}.")
        try:
            self._masters()
            for each in tenants:
                self._tenant(each, is_new=tenant_keys)
        except CannotUnseal as error:
            raise CommandError(
                f"{error}. Add the key that is missing behind the others and start again."
            ) from None

    def _masters(self) -> None:
        total = rotation.under_another_master().count()
        self._follow("tenants' keys, under the first master key", total, rotation.rewrap_under_first_master())
        self.stdout.write(
            "Every tenant's key is under the first master key: the others may leave AGENTOPS_MASTER_KEYS."
        )

    def _tenant(self, tenant: Tenant, *, is_new: bool) -> None:
        if is_new:
            with transaction.atomic():
                key = rotation.new_tenant_key(tenant)
                record(
                    tenant.id, "keys.rotated", "tenant", tenant.slug, OPERATOR, detail={"key": str(key.id)}
                )
        total = rotation.under_retired_key(tenant).count()
        self._follow(f"data keys of {tenant.slug}", total, rotation.rewrap_under_tenant_key(tenant))

    def _follow(self, what: str, total: int, batches: Iterator[int]) -> None:
        done = 0
        for moved in batches:
            done += moved
            self.stdout.write(f"  {what}: {done} of {max(total, done)}")
        if not done:
            self.stdout.write(f"  {what}: nothing to do")
