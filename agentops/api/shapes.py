"""The bodies of the public contract: what a request may carry, and what an answer always has."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator

from approvals.states import ApprovalStatus, Risk, VerdictOfPerson
from operations.states import OperationStatus
from runs.states import RunStatus

from . import examples

MAX_LABELS = 50
MAX_LABEL_CHARS = 500
MAX_REASON_CHARS = 2_000


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("it is blank; write what the agent is asked for")
    return text


def _label(value: object) -> object:
    if isinstance(value, bool | int) or (isinstance(value, str) and len(value) <= MAX_LABEL_CHARS):
        return value
    raise ValueError(
        f"a label is text of at most {MAX_LABEL_CHARS} characters, a whole number, true or false"
    )


Key = Annotated[str, Field(min_length=1, max_length=120)]
LabelName = Annotated[str, Field(min_length=1, max_length=64)]
Label = Annotated[Any, PlainValidator(_label, json_schema_input_type=str | int | bool)]


def _example(value: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [value]})


def _one_of(values: Sequence[str]) -> Any:
    """The values that the rows can have: documented here, held by the database."""
    return Field(json_schema_extra={"enum": list(values)})


def _drop_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


def _optional(description: str) -> Any:
    """A field that is left out where it does not apply; its Python default is never sent."""
    return Field(description=description, json_schema_extra=_drop_default)


RunStatusText = Annotated[str, _one_of(RunStatus.values)]

# --- Requests ---------------------------------------------------------------------------------------------------


class Asked(BaseModel):
    """A request's body: types as declared, and nothing beside the declared fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StartRun(Asked):
    """What an agent is asked to do, for whom, and within which limits."""

    model_config = _example(examples.START)

    agent: Annotated[str, Field(min_length=1, max_length=40, description="The agent's name.")]
    input: Annotated[
        str,
        Field(min_length=1, description="What is asked for, in the customer's words. Sealed at rest."),
        AfterValidator(_said),
    ]
    actor: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z]+:[A-Za-z0-9._@-]{1,100}$",
            description="Whom the run acts for: `customer:C-1001`, `user:7`. Without it, the tenant itself.",
        ),
    ] = None
    conversation_id: Annotated[
        Key | None,
        Field(
            description="Your name for the conversation that the run belongs to. While an earlier run of it has not ended,"
            " this one waits as `queued`; it begins after it and is told what was asked and answered before."
        ),
    ] = None
    dedupe_key: Annotated[
        Key | None,
        Field(
            description="Your business key. While a run of this agent with that key is active, a second start"
            " returns it with 200 and begins nothing."
        ),
    ] = None
    budget_cents: Annotated[
        int | None, Field(ge=1, le=1_000_000, description="What its model turns may cost, in US cents.")
    ] = None
    max_steps: Annotated[
        int | None, Field(ge=1, le=10_000, description="Never more than the agent's own limit.")
    ] = None
    deadline_seconds: Annotated[
        int | None, Field(ge=1, le=31_536_000, description="After so long the run is ended.")
    ] = None
    metadata: Annotated[
        dict[LabelName, Label],
        Field(max_length=MAX_LABELS, description="Labels of yours: masked by pattern, clear at rest."),
    ] = {}


class CancelRun(Asked):
    """Why a run is cancelled. The body may be left out."""

    reason: Annotated[str, Field(max_length=500, description="It stands in the record and the receipt.")] = ""


class Approve(Asked):
    """A yes to exactly the proposal that was shown."""

    model_config = _example(examples.APPROVE)

    approval_id: str
    proposal_digest: Annotated[str, Field(max_length=200, description="The digest of the proposal as shown.")]
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS, description="A comment for the record.")] = ""


class Reject(Asked):
    """A no, with a reason that the agent receives."""

    model_config = _example(examples.REJECT)

    approval_id: str
    proposal_digest: Annotated[str, Field(max_length=200, description="The digest of the proposal as shown.")]
    reason: Annotated[
        str, Field(min_length=1, max_length=MAX_REASON_CHARS, description="Why; the agent passes it on.")
    ]


# --- Answers: a field with a default is left out where it does not apply ------------------------------------------


class Started(BaseModel):
    """The run, where it stands now, and where to follow it."""

    model_config = _example(examples.STARTED)

    run_id: str
    status: RunStatusText
    events_url: str
    status_url: str


class Error(BaseModel):
    """Why a run or an operation ended without success: a stable code, and words for people."""

    code: str
    detail: str


class Result(BaseModel):
    """The agent's answer."""

    text: str
    data: Annotated[Any, _optional("What the agent gave beside its words.")] = None


class ProposalField(BaseModel):
    """One field that would change, before and after. Amounts are in minor units."""

    name: str
    before: Any
    after: Any


class ProposalReason(BaseModel):
    """Why policy asks a person: a stable code, and the tenant's sentence in English."""

    code: str
    text: str


class ProposalWarning(BaseModel):
    """What to look at twice, such as another operation on the same target."""

    code: str
    text: str
    operation_id: Annotated[str, _optional("The operation that it speaks of.")] = ""


class Proposal(BaseModel):
    """What would be sent, as every rule has left it."""

    action: str
    target: str
    fields: list[ProposalField]
    amount_minor: Annotated[int, _optional("In minor units of `currency`.")] = 0
    currency: Annotated[str, _optional("ISO 4217.")] = ""
    reasons: list[ProposalReason]
    warnings: list[ProposalWarning]
    risk: Annotated[str, _one_of(Risk.values)]


class Decision(BaseModel):
    """One person's answer."""

    reviewer: str
    verdict: Annotated[str, _one_of(VerdictOfPerson.values)]
    reason: str
    channel: str
    decided_at: datetime


class Approval(BaseModel):
    """A question to people about exactly one proposal. `decisions` stand oldest first."""

    model_config = _example(examples.APPROVAL)

    approval_id: str
    run_id: str
    operation_id: str
    status: Annotated[str, _one_of(ApprovalStatus.values)]
    proposal: Proposal
    proposal_digest: str
    required: Annotated[int, Field(description="How many people must approve.")]
    decisions: list[Decision]
    expires_at: datetime | None


class Approvals(BaseModel):
    """A page of a run's approvals, oldest first."""

    items: list[Approval]
    next_cursor: str | None


class Operation(BaseModel):
    """One intended change in somebody else's system, and the proof of what became of it."""

    model_config = _example(examples.OPERATION)

    operation_id: str
    run_id: str
    action: str
    target: str
    status: Annotated[str, _one_of(OperationStatus.values)]
    amount_minor: Annotated[int, _optional("In minor units of `currency`.")] = 0
    currency: Annotated[str, _optional("ISO 4217.")] = ""
    provider: str
    provider_ref: str | None
    receipt: Annotated[
        dict[str, Any] | None,
        Field(description="The provider's proof. Null until there is one, and without `operations:read`."),
    ]
    error: Error | None
    attempts: Annotated[int, Field(description="Requests on the wire so far.")]
    key_expires_at: Annotated[
        datetime | None, Field(description="After it this generation is never sent again.")
    ]
    created_at: datetime
    updated_at: datetime


class Run(BaseModel):
    """One execution of an agent. `operations` stand oldest first."""

    model_config = _example(examples.RUN)

    run_id: str
    agent: str
    status: RunStatusText
    cancelling: Annotated[bool, _optional("True while it is being cancelled: an effect is open.")] = False
    failing: Annotated[bool, _optional("True while it is being failed: an effect is open.")] = False
    blocked_on: list[str]
    actor: str
    conversation_id: str | None
    release: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    steps_taken: int
    cost_microusd: Annotated[int, Field(description="In millionths of a US dollar.")]
    budget_cents: Annotated[int, Field(description="In hundredths of a US dollar.")]
    result: Result | None
    error: Error | None
    pending_approvals: Annotated[
        list[Approval], Field(description="Open questions to people. Empty without `approvals:read`.")
    ]
    operations: list[Operation]
    last_event_seq: int
    retry_of: Annotated[str, _optional("The run whose work this one carries on.")] = ""
    trace_id: str
    events_url: str
    status_url: str


class Effect(BaseModel):
    """What became of one operation when its run was cancelled."""

    operation_id: str
    action: str
    target: str
    outcome: Annotated[str, _one_of(["not_sent", "settled", "unknown", "cannot_be_stopped"])]
    provider_ref: Annotated[str, _optional("The provider's reference, where there is one.")] = ""


class Cancelled(BaseModel):
    """The receipt of a cancel: who asked, why, and what became of each effect."""

    model_config = _example(examples.CANCEL)

    run_id: str
    status: RunStatusText
    cancelling: Annotated[bool, _optional("True while an effect is open.")] = False
    requested_by: str
    reason: str
    effects: list[Effect]


class Fault(BaseModel):
    """One invalid place of a request."""

    pointer: Annotated[str, Field(description="A JSON pointer (RFC 6901) into the body.")]
    detail: str


class Problem(BaseModel):
    """RFC 9457 problem details; further members depend on `code`."""

    type: str
    title: str
    status: int
    detail: Annotated[str, Field(description="What is wrong, and what to do next.")]
    instance: str
    code: Annotated[str, Field(description="Stable; the one to branch on.")]
    request_id: str
    errors: Annotated[list[Fault], _optional("Each invalid place, where the request is not valid.")] = []
