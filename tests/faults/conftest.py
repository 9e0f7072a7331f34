from tests.ledger import ledger
from tests.locks import _recording, lock_orders, no_circle
from tests.stage import stage

__all__ = ["_recording", "ledger", "lock_orders", "no_circle", "stage"]
