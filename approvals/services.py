"""The verbs on an approval, each in a file of its own: ask, decide, lower, take back, end; and the fresh look before sending."""

from .asking import may_ask_again, submit
from .authority import AUTHORITY
from .bulk import decide_each
from .deciding import decide
from .ending import expire_due, withdraw
from .lowering import lower
from .revoking import extend, revoke

__all__ = [
    "AUTHORITY",
    "decide",
    "decide_each",
    "expire_due",
    "extend",
    "lower",
    "may_ask_again",
    "revoke",
    "submit",
    "withdraw",
]
