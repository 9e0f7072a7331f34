from tests.ledger import ledger
from tests.stage import provider, provider_process, stage
from tests.world import still_world, world

__all__ = ["ledger", "provider", "provider_process", "stage", "still_world", "world"]
