from tests.locks import _recording, lock_orders, no_circle
from tests.stage import provider, provider_process, stage
from tests.world import world

__all__ = ["_recording", "lock_orders", "no_circle", "provider", "provider_process", "stage", "world"]
