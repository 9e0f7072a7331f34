from tests.locks import _recording, lock_orders, no_circle
from tests.stage import stage
from tests.world import world

__all__ = ["_recording", "lock_orders", "no_circle", "stage", "world"]
