from tests.ledger import ledger
from tests.stage import stage

__all__ = ["ledger", "stage"]
