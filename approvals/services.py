"""The verbs on an approval, each in a file of its own: ask, decide, end, and the fresh look before anything is sent."""

from .asking import may_ask_again, submit
from .authority import AUTHORITY
from .deciding import decide
from .ending import expire_due, withdraw

__all__ = ["AUTHORITY", "decide", "expire_due", "may_ask_again", "submit", "withdraw"]
