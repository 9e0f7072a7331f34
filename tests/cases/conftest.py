from tests.integration.engine.conftest import test_agent
from tests.stage import stage

__all__ = ["stage", "test_agent"]
