"""Runs: the list, one run with its live timeline, its raw events, and cancelling it."""

from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import F, Max, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from agentops.audit.entries import Actor
from agentops.engine.control import AlreadyEnded, CancelReceipt, cancel_run
from agentops.engine.releases import choices
from agentops.engine.standing import standing
from agentops.kernel import redaction
from agentops.kernel.clock import Now
from agentops.kernel.ids import parse
from agentops.kernel.sealed import CannotUnseal
from agentops.tenancy import vault
from operations.models import Operation
from operations.sentences import action_title, status_label
from operations.states import FINAL, UNSENT
from runs import events
from runs.models import AgentRun, RunEvent
from runs.queries import events_after, input_text
from runs.states import TERMINAL, RunStatus

from . import timeline, timeline_view
from .access import Access, access_of, key_in
from .keyset import newest_first
from .names import names_in, with_names
from .plain import number
from .run_verbs import offered
from .timeline_words import WORDS

EVENTS_PAGE = 200
GROUPS = 300
RERUNS = 5  # the newest
SUBJECT_CHARS = 90
SHOWN = ("all", "model", "tools", "operations", "problems")


def _visible(access: Access, permission: str = "view_runs") -> QuerySet[AgentRun]:
    return AgentRun.objects.filter(tenant_id__in=access.within(permission))


def find(access: Access, public_id: str, permission: str = "view_runs") -> AgentRun:
    """The run with its tenant, release, key and the database's clock; another tenant's is as good as none."""
    run = (
        _visible(access, permission)
        .filter(pk=key_in("run", public_id))
        .select_related("tenant", "release", "data_key")
        .annotate(clock=Now())
        .first()
    )
    if run is None:
        raise Http404("There is no such run, or it is none of your tenants'.")
    vault.opened(run.data_key_id, run.data_key)
    return run


# ---- List ----


@require_safe
def run_list(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    tenant_ids = access.require("view_runs")
    query = request.GET.dict()
    runs = _visible(access).select_related("tenant", "data_key").annotate(clock=Now())
    if query.get("status") == "active":
        runs = runs.exclude(status__in=TERMINAL)
    elif query.get("status") in RunStatus.values:
        runs = runs.filter(status=query["status"])
    if tenant_id := number(query.get("tenant")):
        runs = runs.filter(tenant_id=tenant_id)
    wanted = query.get("q", "").strip()
    if wanted:
        runs = runs.filter(Q(pk=parse("run", wanted)) | Q(trace_id=wanted) | Q(error_code=wanted))
    page = newest_first(runs, query)
    context = {
        **admin.site.each_context(request),
        "title": "Runs",
        "rows": [{"run": run, "subject": subject(run), "took": _took(run)} for run in page.rows],
        "page": page,
        "query": query,
        "statuses": [("", "All"), ("active", "Active"), *RunStatus.choices],
        "tenants": {key: access.tenants[key] for key in tenant_ids} if len(tenant_ids) > 1 else {},
    }
    return TemplateResponse(request, "console/runs.html", context)


def subject(run: AgentRun) -> str:
    """The first line of what was asked, cut; empty where it was erased."""
    try:
        vault.opened(run.data_key_id, run.data_key)
        text = input_text(run)
    except CannotUnseal:
        return ""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= SUBJECT_CHARS else f"{line[: SUBJECT_CHARS - 1]}…"


def _took(run: Any) -> str:
    return timeline_view.took(int(((run.finished_at or run.clock) - run.created_at).total_seconds() * 1000))


# ---- One run ----


def frame_of(event: RunEvent) -> dict[str, Any]:
    """An event as the timeline reads it: the same body as in the public stream."""
    try:
        data = events.opened(event)
    except CannotUnseal:  # erased on request: the fact stays, its words are gone
        data = {"erased": True}
    at = event.at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {"seq": event.seq, "type": event.type, "at": at, "data": data}


def _log(run_id: UUID) -> QuerySet[RunEvent]:
    """The events that the timeline needs: pieces of a text only of the turn that is being written."""
    of_run = RunEvent.objects.filter(run_id=run_id)
    written = of_run.filter(type="assistant.message").values("run_id").annotate(last=Max("seq"))
    last_message = Coalesce(Subquery(written.values("last")[:1]), 0)
    return of_run.filter(~Q(type="assistant.delta") | Q(seq__gt=last_message)).order_by("seq")


@require_safe
def run_page(request: HttpRequest, run_id: str) -> HttpResponse:
    access = access_of(request)
    run: Any = find(access, run_id)
    state = timeline.reduce(timeline.initial(), map(frame_of, _log(run.id)))
    now = int(run.clock.timestamp() * 1000)
    limit = number(request.GET.get("groups"), GROUPS, most=100_000)
    groups, older = timeline_view.shown_groups(state, limit)
    state["groups"] = {group["key"]: group for group in groups}
    folded = request.GET.get("scale") != "true"
    seen = timeline_view.view(state, now, folded=folded)
    names = names_in(run.tenant_id)
    now_line = timeline_view.now_line(state, now)
    may_control = run.tenant_id in access.within("control_runs")
    context = {
        **admin.site.each_context(request),
        "title": run.public_id,
        "run": run,
        "subject": subject(run),
        "asked": input_text(run),
        "state": state,
        "status_label": timeline_view.status_label(state),
        "rows": [_row(state["groups"][row["key"]], row, names) for row in seen["rows"]],
        "blank": _BLANK,
        "tail": seen["tail"],
        "figures": timeline_view.figures(state, now, run.budget_microusd),
        "now_line": {
            **now_line,
            "href": group_url(now_line["key"]),
            "is_approval": now_line["key"].startswith("apr_"),
        },
        "answer": timeline_view.answer(state),
        "older": older,
        "more_groups": limit + GROUPS,
        "show": request.GET.get("show") if request.GET.get("show") in SHOWN else "all",
        "shown": SHOWN,
        "folded": folded,
        "names": names,
        "page_state": {
            "run_id": run.public_id,
            "state": state,
            "words": WORDS,
            "names": names,
            "clock": now,
            "folded": folded,
            "budget_microusd": run.budget_microusd,
            "events_url": reverse("admin:runs_events", args=[run.public_id]),
            "urls": {
                "apr_": reverse("admin:approvals_review", args=["apr_key"]),
                "op_": reverse("admin:operations_page", args=["op_key"]),
            },
        },
        "may_cancel": run.tenant_id in access.within("cancel_runs") and not state["finished"],
        "verbs": offered(run) if may_control else [],
        "may_rerun": may_control and run.is_terminal,
        "standing": [with_names(sentence, names) for sentence in standing(run)],
        "offers": choices(run),
        "followers": _followers(run),
    }
    return TemplateResponse(request, "console/run.html", context)


def _followers(run: AgentRun) -> list[AgentRun]:
    """The retry that carries it on, then the newest of those that took its request up from the beginning."""
    found = AgentRun.objects.filter(Q(retry_of=run) | Q(rerun_of=run), tenant_id=run.tenant_id)
    return list(found.order_by(F("retry_of").desc(nulls_last=True), "-id")[: RERUNS + 1])


_BLANK = {"group": {"state": "active"}, "bars": [], "lines": []}
_LINKS = {"apr_": "Open the review", "op_": "Open the operation"}


def _row(group: dict[str, Any], seen: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """What the template of a row shows; `run.js` fills the same slots with the same values."""
    link = next((words for prefix, words in _LINKS.items() if group["key"].startswith(prefix)), "")
    return {
        **seen,
        "group": group,
        "problem": timeline_view.is_problem(group),
        "lane": WORDS["lane"][group["lane"]],
        "title": with_names(group["title"], names),
        "note": with_names(group["note"], names),
        "word": with_names(group["word"], names),
        "lines": [(name, with_names(text, names)) for name, text in group["lines"]],
        "text": group["text"],
        "href": group_url(group["key"]) if link else "",
        "link": link,
        "bars": [
            {
                "x": tenths(bar["x"]),
                "width": tenths(bar["width"]),
                "look": bar["look"],
                "open": bar["look"] in ("active", "waiting") and not group["end"],
            }
            for bar in seen["bars"]
        ],
    }


def tenths(units: int) -> str:
    """Thousandths of the axis as per cent: 125 -> `12.5`."""
    return f"{units // 10}.{units % 10}"


def group_url(key: str) -> str:
    """The page of an approval or operation that a group stands for; "" for every other group."""
    if key.startswith("apr_"):
        return reverse("admin:approvals_review", args=[key])
    return reverse("admin:operations_page", args=[key]) if key.startswith("op_") else ""


@require_safe
def run_events(request: HttpRequest, run_id: str) -> HttpResponse:
    """The raw log, by position: a page to read, or JSON for a timeline that has lost its socket."""
    access = access_of(request)
    run = find(access, run_id)
    after = number(request.GET.get("after"), most=100_000)
    frames = [frame_of(event) for event in events_after(run.id, after, EVENTS_PAGE)]
    if "application/json" in request.headers.get("Accept", ""):
        return JsonResponse({"events": frames}, headers={"Cache-Control": "no-store"})
    context = {
        **admin.site.each_context(request),
        "title": f"Events of {run.public_id}",
        "run": run,
        "frames": frames,
        "after": after,
        "before": max(0, after - EVENTS_PAGE),
        "next": frames[-1]["seq"] if len(frames) == EVENTS_PAGE else 0,
    }
    return TemplateResponse(request, "console/run_events.html", context)


# ---- Cancel ----

_OUTCOMES = {
    "not_sent": "not sent, and never will be",
    "settled": "sent and settled before",
    "unknown": "sent; what became of it is being found out",
    "cannot_be_stopped": "on its way; it cannot be stopped",
}


@require_http_methods(["GET", "HEAD", "POST"])
def cancel(request: HttpRequest, run_id: str) -> HttpResponse:
    """Confirm first what cancelling does not undo, then one POST that cancels; a second one is answered calmly."""
    access = access_of(request)
    run = find(access, run_id, "cancel_runs")
    page_url = reverse("admin:runs_page", args=[run.public_id])
    if run.is_terminal or run.ending:
        messages.info(request, f"This run is {_ended_word(run)} already; nothing more was done.")
        return HttpResponseRedirect(page_url)
    reason = redaction.reason(request.POST.get("reason", ""), 500)
    if request.method == "POST" and reason:
        actor = Actor(f"user:{access.user.pk}", "admin")
        try:
            _tell(request, cancel_run(run.tenant_id, run.id, actor=actor, reason=reason))
        except AlreadyEnded as ended:
            messages.info(request, ended.detail)
        return HttpResponseRedirect(page_url)
    operations = Operation.objects.filter(run_id=run.id).exclude(status__in=FINAL).order_by("id")
    context = {
        **admin.site.each_context(request),
        "title": "Cancel run",
        "run": run,
        "subject": subject(run),
        "unsent": [_told(operation) for operation in operations if operation.status in UNSENT],
        "sent": [_told(operation) for operation in operations if operation.status not in UNSENT],
        "missing": request.method == "POST",
    }
    return TemplateResponse(
        request, "console/run_cancel.html", context, status=422 if request.method == "POST" else 200
    )


def _ended_word(run: AgentRun) -> str:
    return run.get_status_display().lower() if run.is_terminal else "being ended"


def _told(operation: Operation) -> dict[str, str]:
    return {
        "id": operation.public_id,
        "title": action_title(operation),
        "status": operation.status,
        "label": status_label(operation.status),
    }


def _tell(request: HttpRequest, receipt: CancelReceipt) -> None:
    effects = "; ".join(
        f"{effect.action} on {effect.target.replace(':', ' ')}: {_OUTCOMES[effect.outcome]}"
        for effect in receipt.effects
    )
    if receipt.has_open_effects:
        messages.warning(request, f"Cancelling. It ends once what was sent is settled. {effects}.")
    else:
        messages.success(
            request, f"Cancelled. {effects}." if effects else "Cancelled. Nothing had been sent."
        )
