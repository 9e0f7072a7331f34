"""What a refund becomes later: a pending one settles, a bounced one fails and gives its amount back."""

from collections.abc import Callable

from agentops.demo.provider import books
from agentops.demo.provider.books import Books
from agentops.demo.provider.stripe_wire import refund_object
from agentops.demo.provider.webhooks import announce

NEXT = "SELECT min(settles_at) FROM refunds WHERE settles_at IS NOT NULL"


def settle_due(ledger: Books, announced: Callable[[], None]) -> float | None:
    """Returns the seconds until the next one is due, None when none is."""
    with ledger.reading() as db:
        next_at = db.execute(NEXT).fetchone()[0]
    if next_at is None or next_at > books.now():
        return None if next_at is None else max(0.0, next_at - books.now())
    with ledger.writing() as db:
        due = "SELECT * FROM refunds WHERE settles_at IS NOT NULL AND settles_at <= ? ORDER BY settles_at"
        for row in db.execute(due, (books.now(),)).fetchall():
            failure_reason = "declined" if row["status"] == "pending" else "expired_or_canceled_card"
            db.execute(
                "UPDATE refunds SET status = settles_to, settles_at = NULL,"
                " failure_reason = CASE settles_to WHEN 'failed' THEN ? END WHERE id = ?",
                (failure_reason, row["id"]),
            )
            settled = db.execute("SELECT * FROM refunds WHERE id = ?", (row["id"],)).fetchone()
            announce(db, "refund.updated", refund_object(settled))
            if settled["status"] == "failed":
                announce(db, "refund.failed", refund_object(settled))
    announced()
    return 0.0
