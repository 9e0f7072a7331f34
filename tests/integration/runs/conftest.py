from tests.stage import stage

__all__ = ["stage"]
