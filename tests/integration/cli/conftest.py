from tests.stage import provider, provider_process, stage

__all__ = ["provider", "provider_process", "stage"]
