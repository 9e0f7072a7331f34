from tests.integration.engine.conftest import test_agent
from tests.stage import provider, provider_process, stage

__all__ = ["provider", "provider_process", "stage", "test_agent"]
