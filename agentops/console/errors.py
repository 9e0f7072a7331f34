"""What a browser is shown when something cannot be shown: in the shell where it can be, with the request's id."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template import loader
from django.utils.cache import add_never_cache_headers
from django.views.decorators.csrf import requires_csrf_token

from agentops.telemetry.requests import request_id


def _page(request: HttpRequest, status: int, title: str, what: str, advice: str) -> HttpResponse:
    context = {"title": title, "what": what, "advice": advice, "request_id": request_id(request)}
    if getattr(request, "user", None) is not None and admin.site.has_permission(request):
        context = {**admin.site.each_context(request), **context}
    answer = render(request, "console/error.html", context, status=status)
    add_never_cache_headers(answer)  # a 404 or 410 may be kept otherwise, with the name in its shell
    return answer


@requires_csrf_token
def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _page(
        request,
        404,
        "Not found",
        "There is nothing at this address, or it belongs to a tenant that you cannot see.",
        "Check the address; a tenant administrator can grant the right to see another tenant.",
    )


@requires_csrf_token
def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    what = str(exception) or "Your account has no right to do this."
    return _page(request, 403, "Not permitted", what, "A tenant administrator can grant the right.")


def unreadable(request: HttpRequest) -> HttpResponse:
    return _page(
        request,
        410,
        "It does not open",
        "What this page would show was erased on request, or its record was altered. Nothing was changed.",
        "Whoever runs this installation finds in the audit log which of the two it is.",
    )


@requires_csrf_token
def stale_form(request: HttpRequest, reason: str = "") -> HttpResponse:
    """The form came without its token, or with one of another session."""
    return _page(
        request,
        403,
        "This form is too old",
        "The page was opened before you signed in again, or cookies are off. Nothing was changed.",
        "Go back, load the page again, and send it once more.",
    )


@requires_csrf_token
def broken(request: HttpRequest) -> HttpResponse:
    """Nothing that may be broken is asked: no database, no session, no shell."""
    page = loader.get_template("console/broken.html")
    return HttpResponse(page.render({"request_id": _request_id(request)}), status=500)


def _request_id(request: HttpRequest) -> str:
    return str(request.META.get("agentops.request_id", ""))
