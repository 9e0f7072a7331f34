"""A run takes its messages: what one brings is journaled in the very commit that takes it, so no crash loses or doubles it."""

from .ledger import NewStep, RunLedger
from .live import LiveRun, Message


async def take(run: LiveRun, ledger: RunLedger) -> None:
    """Take all that was read. A hint (an approval, an operation) has brought nothing but the occasion to look again."""
    messages, run.inbox = run.inbox, []
    if not messages:
        return
    run.inbox_read = messages[-1].n
    steps = [_journaled(message) for message in messages if message.kind == "child"]
    if steps:
        await ledger.checkpoint(run, steps)


def _journaled(message: Message) -> NewStep:
    """A child's end answers the call that started it."""
    body = message.body
    return NewStep(body["step"], "step", body["agent"], body["outcome"])
