"""A run in lines of text: the list, one run with all that holds it up, and its progress, event by event."""

import re
from collections.abc import Iterator
from typing import Any

from agentops.engine.outlook import Fate, Outlook
from agentops.engine.releases import choices
from agentops.engine.standing import standing
from agentops.kernel.redaction import printable
from agentops.tenancy.models import User
from operations.models import Operation
from runs import events, queries
from runs.models import AgentRun, RunEvent

LINE_CHARS = 300
ANSWER_CHARS = 20_000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PERSON = re.compile(r"user:(\d+)")


def named(text: str) -> str:
    """`text` with the names of people in the place of `user:7`."""
    keys = {int(key) for key in _PERSON.findall(text)}
    names = {
        person.pk: person.get_full_name() or person.username for person in User.objects.filter(pk__in=keys)
    }
    return _PERSON.sub(lambda found: names.get(int(found.group(1)), found.group()), text)


def dollars(microusd: int) -> str:
    return f"${microusd / 1_000_000:.4f}"


def status(run: AgentRun) -> str:
    """The status with what it hides: that the run is paused, being ended, or stopped for a person."""
    if run.ending and not run.is_terminal:
        return "cancelling" if run.ending == "cancelled" else "failing"
    word = "paused" if run.is_paused else run.status
    return f"{word} ({run.error_code})" if run.error_code else word


def line(run: AgentRun) -> str:
    return f"{run.public_id}  {run.created_at:%Y-%m-%d %H:%M}  {status(run):<30}  {run.agent:<20}  {run.tenant.slug}"


def shown(run: AgentRun) -> Iterator[str]:
    """Everything about a run but the words of people and models."""
    yield f"{run.public_id}  {status(run)}"
    yield f"  agent      {run.agent}, release {run.release.digest.rpartition(':')[2][:8]}, tenant {run.tenant.slug}"
    yield f"  for        {named(run.actor)}, started by {named(run.principal)} over {run.channel}"
    budget = dollars(run.budget_microusd) if run.budget_microusd else "no limit"
    yield f"  used       {run.steps_taken} of {run.max_steps} steps, {dollars(run.spent_microusd)} of {budget}"
    if run.retry_of is not None:
        yield f"  retries    {run.retry_of.public_id}"
    if run.rerun_of is not None:
        yield f"  reruns     {run.rerun_of.public_id}"
    if run.blocked_on:
        yield f"  waits for  {', '.join(run.blocked_on)}"
    if run.error_code:
        yield f"  reason     {run.error_code}: {run.error_detail or run.ending_reason}"
    for sentence in standing(run):
        yield f"  {named(sentence)}"
    yield from _offers(run)
    for each in Operation.objects.filter(interests__run_id=run.id).order_by("id"):
        yield f"  {each.public_id}  {each.status:<10}  {each.action} on {each.target_text}"


_FATES = {Fate.REUSED: "reused", Fate.ANEW: "to be proposed again", Fate.BLOCKED: "blocked"}


def met(seen: Outlook) -> Iterator[str]:
    """What a rerun would meet, operation by operation."""
    yield f"A rerun of {seen.source} begins with an empty journal, and every turn is asked and billed anew."
    for each in seen.prospects:
        yield f"  {_FATES[each.fate]:<20}  {each.met.public_id}  {each.title}"
        yield f"  {'':<20}  {named(each.sentence)}"
    if not seen.prospects:
        yield "  It has proposed nothing."


def _offers(run: AgentRun) -> Iterator[str]:
    found = choices(run)
    if found is None:
        return
    yield "  finish     start a worker of that release; the run goes on there by itself"
    if found.move.possible:
        yield f"  move       `run move {run.public_id}`: {' '.join(found.move.losses) or 'nothing is lost.'}"
    else:
        yield f"  move       not possible: {' '.join(found.move.obstacles)}"
    yield f"  cancel     `run cancel {run.public_id}`"


_TELLING = ("why", "actor", "tool", "action", "target", "code", "text", "detail", "reason", "release")
_QUIET = ("assistant.delta",)


def progress(event: RunEvent) -> str:
    """One line of the run's log; empty for pieces of a text that comes whole a little later."""
    if event.type in _QUIET:
        return ""
    data: dict[str, Any] = events.opened(event)
    told = [str(data[name]).strip() for name in _TELLING if data.get(name)]
    words = _safe(named(" · ".join(told)), LINE_CHARS).replace("\n", " ")
    return f"{event.at:%H:%M:%S}  {event.type:<22}  {words}".rstrip()


def answer(run: AgentRun) -> str:
    found = queries.result(run)
    return _safe(found["text"], ANSWER_CHARS) if found else ""


def one_line(text: str) -> str:
    """Somebody's words among ours: one line, however many they are, and nothing that a terminal would obey."""
    return " ".join(_safe(text, ANSWER_CHARS).split("\n"))


def _safe(text: str, limit: int) -> str:
    """A model's or a customer's words without what a terminal would obey."""
    return _CONTROL.sub("", printable(text, limit))
