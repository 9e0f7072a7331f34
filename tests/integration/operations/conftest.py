from tests.ledger import ledger
from tests.stage import provider, provider_process, stage

__all__ = ["ledger", "provider", "provider_process", "stage"]
