"""Why a run ends, or stands still for a person: each code with its sentence. `docs/run-ends.md` shows the same to callers."""

from collections.abc import Mapping

# A completed run has no code: its answer is the reason.
CODES: Mapping[str, str] = {
    "step_limit": "It took its steps without an answer.",
    "budget": "Its budget does not cover the next turn.",
    "deadline": "Its time was up before it had an answer.",
    "repeated_call": "It asked the very same of the same tool three times in a row; a person retries it or ends it.",
    "policy": "A rule refused what its agent may not do without.",
    "rejected": "A person refused what its agent may not do without.",
    "expired": "Nobody decided in time about what its agent may not do without.",
    "operation_failed": "The provider refused what its agent may not do without.",
    "operation_cancelled": "What its agent may not do without was withdrawn before it was sent.",
    "cancelled": "Somebody cancelled it.",
    "superseded_by_newer": "A newer run was started under its concurrency key, and the newest wins.",
    "parent_cancelled": "The run that started it was cancelled.",
    "parent_failed": "The run that started it failed.",
    "release": "It needs a tool, an agent or an action's version that no worker of the present release has.",
    "worker_crash_loop": "Five workers ended while they held it, and none had got any further.",
    "journal_mismatch": "Its code asked for something else than was recorded at the same place.",
    "agent_error": "An error in the agent's own loop; its traceback stands in the log under the run's id.",
}
MODEL_CODE = "model_"  # and the model's own: model_unauthorized, model_rate_limited, …


def of_refusal(status: str, code: str) -> str:
    """The end of a run whose agent cannot do without an operation that ended without effect."""
    match status:
        case "rejected":
            return "rejected" if code == "rejected" else "policy"
        case "expired":
            return "expired"
        case "cancelled":
            return "operation_cancelled"
    return "operation_failed"
