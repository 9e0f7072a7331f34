"""The admin site: Django's own, with the console's pages in front and its shell around every page."""

from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, URLResolver, path, register_converter
from django.urls.converters import StringConverter
from django.views.decorators.http import require_safe
from django.views.generic import RedirectView

from agentops.kernel.sealed import CannotUnseal

from .errors import unreadable
from .plain import storable_form

for _prefix in ("apr", "run", "op"):
    # Only such an address is a page of ours: /admin/approvals/policy/ is the stock admin's.
    register_converter(
        type(f"{_prefix}_id", (StringConverter,), {"regex": f"{_prefix}_[0-9a-z]+"}), f"{_prefix}_id"
    )

_APPS = ("tenancy", "audit")


class ConsoleSite(admin.AdminSite):
    site_header = "AgentOps"
    site_title = "AgentOps"
    index_title = "Overview"
    site_url = None
    enable_nav_sidebar = False

    def get_urls(self) -> list[URLPattern | URLResolver]:
        from . import (
            inbox,
            operation_pages,
            overview,
            review,
            run_again,
            run_control,
            run_pages,
        )  # models are loaded by now

        def page(route: str, view: Any, name: str) -> URLPattern:
            found: URLPattern = path(route, self.admin_view(view), name=name)
            return found

        return [
            page("", overview.overview, "index"),
            page("counts/", counts, "counts"),
            page("approvals/", inbox.inbox, "approvals"),
            page("approvals/<apr_id:approval_id>/", review.review, "approvals_review"),
            page("runs/", run_pages.run_list, "runs"),
            page("runs/<run_id:run_id>/", run_pages.run_page, "runs_page"),
            page("runs/<run_id:run_id>/events/", run_pages.run_events, "runs_events"),
            page("runs/<run_id:run_id>/cancel/", run_pages.cancel, "runs_cancel"),
            page("runs/<run_id:run_id>/rerun/", run_again.run_again, "runs_again"),
            page("runs/<run_id:run_id>/<slug:verb>/", run_control.control, "runs_control"),
            page("operations/", operation_pages.operation_list, "operations"),
            page("operations/<op_id:operation_id>/", operation_pages.operation_page, "operations_page"),
            # The sidebar is the index: a page per Django app would tell of our packages, not of the product.
            *(
                page(f"{label}/", RedirectView.as_view(pattern_name="admin:index"), f"{label}_index")
                for label in _APPS
            ),
            *super().get_urls(),
        ]

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        @wraps(view)
        def whole(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            request.GET = storable_form(request.GET)  # type: ignore[assignment]  # the stubs have one of their own
            if request.method == "POST":
                request.POST = storable_form(request.POST)  # type: ignore[assignment]
            try:
                answer: HttpResponse = view(request, *args, **kwargs)
            except CannotUnseal:
                return unreadable(request)
            return answer

        return super().admin_view(whole, cacheable)

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        context: dict[str, Any] = super().each_context(request)
        if context["has_permission"]:
            from . import shell

            context |= shell.context(request)
        context["environment"] = "Demo" if settings.AGENTOPS_DEMO else ""
        return context


@require_safe
def counts(request: HttpRequest) -> HttpResponse:
    """The sidebar's figures, fetched again by a page that stays open."""
    from agentops.kernel.clock import now

    from . import shell
    from .access import access_of

    found = shell.count(access_of(request))
    return JsonResponse(
        {"approvals": found.approvals, "unclear": found.unclear, "at": f"{now():%H:%M:%S}"},
        headers={"Cache-Control": "no-store"},
    )
