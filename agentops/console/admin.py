"""Rows that are looked at and not changed here: ordinary model admins, read-only, scoped by grants on the tenant."""

import json
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.forms import Media
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.text import capfirst

from agentops.audit.models import AuditEntry
from agentops.tenancy.models import ApiToken, Membership, Tenant, User
from approvals.models import Policy

from .access import access_of

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _Paginator = Paginator[Any]
else:
    _ModelAdmin, _Paginator = admin.ModelAdmin, Paginator

COUNTED = 10_000


class CappedPaginator(_Paginator):
    """Counts to a bound, so that no list of millions is counted for one page of it."""

    @cached_property
    def count(self) -> int:
        rows = cast(QuerySet[Any], self.object_list)
        return len(rows.values_list("pk")[: COUNTED + 1])


class ReadOnly(_ModelAdmin):
    """Rows are made and moved by services; the admin shows them to whoever has `right` in their tenant."""

    right: ClassVar[str]  # a permission on Tenant; "" for administrators of the installation only
    actions = None
    show_full_result_count = False
    paginator = CappedPaginator
    list_per_page = 50
    show_facets = admin.ShowFacets.NEVER

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        title = capfirst(self.opts.verbose_name_plural)
        # A list that only shows rows needs no script of the stock admin's, least of all 290 KB of jQuery.
        return super().changelist_view(request, {"title": title, "media": Media(), **(extra_context or {})})

    def has_view_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        access = access_of(request)
        if not self.right:
            return access.user.is_superuser
        if obj is None:
            return access.anywhere(self.right)
        return obj.tenant_id in access.within(self.right)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """By what a list offers; whatever else is asked is answered with the whole list, as Django does with nonsense.

        Any column could be asked otherwise: the hash of a token piece by piece, or in words that its type cannot read.
        """
        if lookup not in {f"{name}__exact" for name in self.get_list_filter(request)}:
            raise IncorrectLookupParameters
        return True

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any | None = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        return rows.filter(tenant_id__in=access_of(request).within(self.right)) if self.right else rows


@admin.register(Tenant)
class TenantAdmin(ReadOnly):
    right = ""
    list_display = ("name", "slug", "state", "timezone", "concurrent_runs", "open_runs", "created_at")
    list_display_links = ("name",)
    sortable_by = ("slug",)
    ordering = ("slug",)


@admin.register(User)
class UserAdmin(ReadOnly):
    right = ""
    list_display = ("username", "first_name", "last_name", "email", "is_active", "is_superuser", "last_login")
    list_display_links = ("username",)
    sortable_by = ("username",)
    ordering = ("username",)
    search_fields = ("username__exact",)
    search_help_text = "The exact user name"
    fields = (
        "username",
        "first_name",
        "last_name",
        "email",
        "is_active",
        "is_staff",
        "is_superuser",
        "last_login",
        "date_joined",
    )


@admin.register(Membership)
class MembershipAdmin(ReadOnly):
    right = "manage_access"
    list_display = ("user", "tenant", "role", "created_at")
    list_display_links = ("user",)
    list_select_related = ("user", "tenant")
    list_filter = ("role",)
    raw_id_fields = ("user", "tenant")
    sortable_by = ()
    ordering = ("tenant", "user")


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnly):
    """The hash is shown to nobody."""

    right = "manage_access"
    list_display = (
        "name",
        "shown_prefix",
        "tenant",
        "person",
        "scopes",
        "last_used_at",
        "expires_at",
        "revoked_at",
    )
    list_display_links = ("name",)
    list_select_related = ("tenant", "person")
    raw_id_fields = ("tenant", "person")
    sortable_by = ()
    ordering = ("tenant", "name")
    fields = (
        "name",
        "shown_prefix",
        "tenant",
        "person",
        "scopes",
        "created_at",
        "last_used_at",
        "expires_at",
        "revoked_at",
    )
    readonly_fields = ("shown_prefix",)

    @admin.display(description="prefix")
    def shown_prefix(self, token: ApiToken) -> str:
        return f"{token.prefix}…"


@admin.register(Policy)
class PolicyAdmin(ReadOnly):
    right = "manage_policies"
    list_display = ("action", "number", "tenant", "standing", "published_at", "published_by", "created_at")
    fields = (
        "action",
        "number",
        "tenant",
        "standing",
        "shown_rules",
        "published_at",
        "published_by",
        "created_at",
    )
    readonly_fields = ("standing", "shown_rules")
    list_display_links = ("action",)
    list_select_related = ("tenant",)
    raw_id_fields = ("tenant",)
    sortable_by = ()
    ordering = ("tenant", "action", "-number")

    @admin.display(description="standing")
    def standing(self, policy: Policy) -> str:
        if policy.published_at is None:
            return "draft"
        return "log-only" if policy.log_only else "published"

    @admin.display(description="rules")
    def shown_rules(self, policy: Policy) -> str:
        return format_html(
            '<pre class="rules">{}</pre>', json.dumps(policy.rules, indent=2, ensure_ascii=False)
        )


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnly):
    right = "view_audit"
    list_display = ("at", "actor", "verb", "object_id", "channel", "kind", "tenant")
    list_display_links = ("at",)
    list_select_related = ("tenant",)
    list_filter = ("security",)
    raw_id_fields = ("tenant",)
    search_fields = ("object_id__exact",)
    search_help_text = "The exact id of an object: run_…, op_…, apr_…"
    sortable_by = ()
    ordering = ("-id",)
    fields = (
        "at",
        "actor",
        "on_behalf_of",
        "channel",
        "verb",
        "object_type",
        "object_id",
        "security",
        "tenant",
        "before_digest",
        "after_digest",
    )

    @admin.display(description="kind")
    def kind(self, entry: AuditEntry) -> str:
        return "security" if entry.security else ""
