"""Pausing, resuming, retrying and moving a run: a page that says what it does, then one POST with a reason."""

from django.contrib import admin, messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from agentops.audit.entries import Actor
from agentops.engine import releases
from agentops.kernel import redaction
from agentops.kernel.problems import Conflict

from .access import access_of
from .run_pages import find, subject
from .run_verbs import VERBS

RIGHT = "control_runs"


@require_http_methods(["GET", "HEAD", "POST"])
def control(request: HttpRequest, run_id: str, verb: str) -> HttpResponse:
    """Say what it does; then one POST does it. Where it is too late, the run's page says why."""
    access = access_of(request)
    run = find(access, run_id, RIGHT)
    chosen = VERBS.get(verb)
    if chosen is None:
        raise Http404("There is nothing with this name.")
    page_url = reverse("admin:runs_page", args=[run.public_id])
    reason = redaction.reason(request.POST.get("reason", ""), 500)
    if request.method == "POST" and reason:
        actor = Actor(f"user:{access.user.pk}", "admin")
        try:
            after = chosen.carry_out(run.tenant_id, run.id, actor=actor, reason=reason)
        except Conflict as conflict:
            messages.info(request, conflict.detail)
            return HttpResponseRedirect(page_url)
        if after.pk != run.pk:
            messages.success(request, f"This run carries on the work of {run}.")
        return HttpResponseRedirect(reverse("admin:runs_page", args=[after.public_id]))
    found = releases.choices(run)
    context = {
        **admin.site.each_context(request),
        "title": chosen.button,
        "run": run,
        "subject": subject(run),
        "verb": chosen,
        "move": found.move if found and verb == "move" else None,
        "missing": request.method == "POST",
    }
    status = 422 if request.method == "POST" else 200
    return TemplateResponse(request, "console/run_control.html", context, status=status)
