"""Running a run again: a page that lists what it would meet, then one POST that confirms exactly that list."""

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from agentops.audit.entries import Actor
from agentops.engine.outlook import Fate, Outlook, Prospect, outlook
from agentops.engine.rerun import Moved, rerun
from agentops.kernel import redaction
from agentops.kernel.problems import Conflict
from agentops.kernel.sealed import CannotUnseal
from operations.sentences import status_label
from runs.models import AgentRun
from runs.queries import input_text

from .access import access_of
from .names import names_in, with_names
from .run_control import RIGHT
from .run_pages import find, subject

MAX_CHARS = 20_000
_HEADS = {
    Fate.REUSED: "Reused: it joins what there is",
    Fate.ANEW: "Proposed again, and decided again",
    Fate.BLOCKED: "Blocked: not proposed as things stand",
}


@require_http_methods(["GET", "HEAD", "POST"])
def run_again(request: HttpRequest, run_id: str) -> HttpResponse:
    """List each operation first; a list that has moved by the time of the POST is shown anew, and nothing was started."""
    access = access_of(request)
    run = find(access, run_id, RIGHT)
    page_url = reverse("admin:runs_page", args=[run.public_id])
    if not run.is_terminal:
        messages.info(request, f"{run} has not ended. Wait for its end, or cancel it.")
        return HttpResponseRedirect(page_url)
    reason = redaction.reason(request.POST.get("reason", ""), 500)
    if request.method != "POST" or not reason:
        return _page(request, run, outlook(run), 200 if request.method != "POST" else 422)
    try:
        receipt = rerun(
            run.tenant_id,
            run.id,
            digest=request.POST.get("digest", ""),
            actor=Actor(f"user:{access.user.pk}", "admin"),
            reason=reason,
            text=_other_words(request, run),
        )
    except Moved as moved:
        return _page(request, run, moved.outlook, moved.status)
    except Conflict as conflict:
        messages.info(request, conflict.detail)
        return HttpResponseRedirect(page_url)
    messages.success(request, f"This run takes up the request of {run} from the beginning.")
    return HttpResponseRedirect(reverse("admin:runs_page", args=[receipt.run.public_id]))


def _asked(run: AgentRun) -> str:
    try:
        return input_text(run)
    except CannotUnseal:
        return ""


def _other_words(request: HttpRequest, run: AgentRun) -> str | None:
    """What a fork asks; None where the words are still the run's own."""
    text = request.POST.get("input", "").replace("\r\n", "\n").strip()[:MAX_CHARS]
    return None if text in ("", _asked(run).replace("\r\n", "\n").strip()) else text


def _page(request: HttpRequest, run: AgentRun, seen: Outlook, status: int) -> HttpResponse:
    names = names_in(run.tenant_id)
    groups = [(head, [_row(each, names) for each in seen.of(fate)]) for fate, head in _HEADS.items()]
    context = {
        **admin.site.each_context(request),
        "title": "Run again",
        "run": run,
        "subject": subject(run),
        "groups": [(head, rows) for head, rows in groups if rows],
        "digest": seen.digest,
        "asked": request.POST.get("input") or _asked(run),
        "reason": request.POST.get("reason", ""),
        "missing": status == 422,
        "moved": status == 409,
    }
    return TemplateResponse(request, "console/run_again.html", context, status=status)


def _row(prospect: Prospect, names: dict[str, str]) -> dict[str, str]:
    met = prospect.met
    return {
        "id": met.public_id,
        "title": prospect.title,
        "sentence": with_names(prospect.sentence, names),
        "status": met.status,
        "label": status_label(met.status),
    }
