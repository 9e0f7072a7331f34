from tests.world import still_world, world

__all__ = ["still_world", "world"]
