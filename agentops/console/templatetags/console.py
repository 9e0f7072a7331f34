"""Words and figures for the console's templates: times, durations, money, and text that nobody can trust."""

import json
import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from agentops.console.names import with_names
from agentops.console.plain import plain
from agentops.console.timeline import dollars
from agentops.console.timeline_words import WORDS
from approvals import sentences
from runs.models import AgentRun

register = template.Library()

register.filter("plain", plain)
register.filter("named", with_names)


_WORD_WITH_HYPHEN = re.compile(r"(\S*\w-\w\S*)")


@register.filter
def unbroken(text: str) -> SafeString:
    """`text`, made safe, with words like `A-1002` kept on one line."""
    parts = enumerate(_WORD_WITH_HYPHEN.split(plain(text)))
    pieces = ((format_html('<span class="nb">{}</span>', part) if odd % 2 else part,) for odd, part in parts)
    return format_html_join("", "{}", pieces)


@register.filter
def money(amount_minor: int | None, currency: str) -> str:
    return "" if amount_minor is None else sentences.money(amount_minor, currency)


@register.filter
def day_and_time(at: datetime | None) -> SafeString | str:
    """`29 Nov 14:02:11`, as a `time` element that carries the exact moment."""
    if at is None:
        return ""
    return format_html('<time datetime="{}">{}</time>', at.isoformat(), f"{at:%-d %b %H:%M:%S}")


@register.filter
def iso(at: datetime | None) -> str:
    return "" if at is None else at.isoformat()


@register.simple_tag
def time_left(expires_at: datetime | None, clock: datetime) -> str:
    """`4 min 32 s left`; the browser's countdown says it in the same words."""
    return "no end" if expires_at is None else left(expires_at - clock)


def left(rest: timedelta) -> str:
    seconds = math.ceil(rest.total_seconds())
    if seconds <= 0:
        return "time is up"
    minutes, hours = seconds // 60, seconds // 3600
    if hours:
        return f"{hours} h {minutes % 60:02} min left"
    if minutes >= 5:
        return f"{minutes} min left"
    return f"{minutes} min {seconds % 60:02} s left" if minutes else f"{seconds} s left"


URGENT_SECONDS = 300


@register.simple_tag
def urgent(expires_at: datetime | None, clock: datetime) -> bool:
    return expires_at is not None and (expires_at - clock).total_seconds() < URGENT_SECONDS


_GLYPHS = {
    "queued": "waiting",
    "running": "active",
    "waiting_for_approval": "waiting",
    "completed": "ok",
    "pending": "waiting",
    "approved": "active",
    "executing": "active",
    "escalated": "unknown",
    "succeeded": "ok",
    "rejected": "ended",
    "cancelled": "ended",
    "expired": "ended",
}


@register.filter
def status_glyph(status: str) -> str:
    """The shape and colour of a status: ok, failed, waiting, active, unknown or ended."""
    return _GLYPHS.get(status, status)


@register.filter
def run_status(run: AgentRun) -> str:
    ending = bool(run.ending) and not run.is_terminal
    return WORDS["status"]["ending" if ending else "paused" if run.is_paused else run.status]


@register.filter
def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@register.filter
def short_digest(digest: str) -> str:
    """The first characters of a digest, without the name of its kind."""
    return digest.rpartition(":")[2][:8]


register.filter("dollars", dollars)


@register.inclusion_tag("console/words.html")
def words(text: str) -> dict[str, object]:
    """A customer's or a model's text: as text, long ones folded."""
    shown = plain(text)
    lines = shown.splitlines()
    is_long = len(lines) > FOLD_LINES or len(shown) > FOLD_CHARS
    head = "\n".join(lines[:FOLD_LINES])[:FOLD_CHARS] if is_long else shown
    return {"text": shown, "head": head, "is_long": is_long, "length": len(shown)}


@register.inclusion_tag("console/word_diff.html")
def word_diff(pieces: Sequence[tuple[str, str]]) -> dict[str, object]:
    """A changed text in one reading, a long one folded."""
    shown = [(kind, plain(text)) for kind, text in pieces]
    return {"pieces": shown, "is_long": sum(text.count("\n") for _, text in shown) > FOLD_LINES}


FOLD_LINES = 10
FOLD_CHARS = 600
