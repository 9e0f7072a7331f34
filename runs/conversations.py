"""A conversation is a row of runs, one after the other: the next one begins when the one before has ended, and knows it."""

from uuid import UUID

from django.db.models import QuerySet

from agentops.kernel.ids import uuid7
from agentops.tenancy import vault
from agentops.tenancy.principals import Principal

from .models import AgentRun, Conversation
from .states import TERMINAL, RunStatus

EARLIER_REQUESTS = 20
EARLIER_CHARS = 32_000  # of all earlier requests and answers together
TEXT_CHARS = 8_000  # of one of them
CUT = " […]"


def locked(principal: Principal, external_id: str | None) -> Conversation | None:
    """The conversation that `principal` calls by this name, made where it is new; locked, so that its runs are numbered
    one after the other. It is locked before any run of it.
    """
    if external_id is None:
        return None
    tenant_id = principal.tenant.id
    name = {"tenant_id": tenant_id, "principal": principal.name, "external_id": external_id}
    rows = Conversation.objects.select_for_update(no_key=True).filter(**name)
    found = rows.first()
    if found is not None:
        return found
    conversation_id = uuid7()
    key = vault.make(tenant_id, f"conversation:{conversation_id}")
    made = Conversation(id=conversation_id, data_key_id=key.id, **name)
    Conversation.objects.bulk_create(
        [made], ignore_conflicts=True
    )  # another request may be as early as this one
    return rows.get()


def locked_of(run_id: UUID) -> Conversation | None:
    """The conversation of that run, if it has one, locked before the run itself is."""
    return Conversation.objects.select_for_update(no_key=True).filter(runs=run_id).first()


def unended(conversation: Conversation) -> QuerySet[AgentRun]:
    """Its runs that have not ended, in their order; as long as there is one, a new one waits."""
    return conversation.runs.exclude(status__in=TERMINAL).order_by("id")


def next_of(conversation_id: UUID) -> AgentRun | None:
    """The run whose turn has come and that does not know it yet; the conversation is locked from here on."""
    conversation = Conversation.objects.select_for_update(no_key=True).get(pk=conversation_id)
    first = unended(conversation).first()
    waits = first is not None and first.status == RunStatus.QUEUED and first.ready_at is None
    return first if waits else None


# A run begins only when every earlier one of its conversation has ended, so this is the same in each of its lives. One that
# takes up the request of another knows what that one knew.
EARLIER = f"""
WITH RECURSIVE line AS (
  SELECT id AS reader, id, tenant_id, conversation_id, COALESCE(retry_of_id, rerun_of_id) AS up
  FROM runs_agentrun WHERE id = ANY(%(run_ids)s) AND conversation_id IS NOT NULL
  UNION ALL
  SELECT line.reader, r.id, r.tenant_id, r.conversation_id, COALESCE(r.retry_of_id, r.rerun_of_id)
  FROM line JOIN runs_agentrun r ON r.id = line.up
)
SELECT line.reader, e.* FROM line
CROSS JOIN LATERAL (
  SELECT id, status, sealed_input, sealed_result FROM runs_agentrun e
  WHERE e.conversation_id = line.conversation_id AND e.tenant_id = line.tenant_id AND e.id < line.id
  ORDER BY e.id DESC LIMIT {EARLIER_REQUESTS}
) e
WHERE line.up IS NULL
ORDER BY e.id
"""


def unanswered(status: str) -> str:
    """What stands in the place of an answer where a run ended without one."""
    return f"[This request ended without an answer: {status}.]"


def bounded(exchanges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of earlier requests and answers, oldest first, the newest ones that fit: whole exchanges, long texts cut."""
    kept: list[tuple[str, str]] = []
    room = EARLIER_CHARS
    for asked, answered in reversed(exchanges):
        pair = (_cut(asked), _cut(answered))
        room -= sum(map(len, pair))
        if room < 0:
            break
        kept.insert(0, pair)
    return kept


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else text[: TEXT_CHARS - len(CUT)] + CUT
