"""Who is told, and may decide, where nobody of a group does."""

from django.conf import settings


def next_group(group: str) -> str:
    """The group that is told, and may decide, where nobody of `group` does; "" where there is none."""
    ladder = settings.AGENTOPS_ESCALATION
    if group not in ladder:
        return ""
    place = ladder.index(group) + 1
    return str(ladder[place]) if place < len(ladder) else ""
