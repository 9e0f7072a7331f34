"""What recovery may rely on: what a connector declares *and* the contract test has proved, at its present version."""

from collections.abc import Collection
from dataclasses import dataclass

from .connectors.base import NOTHING, Abilities
from .connectors.registry import CONNECTORS
from .models import Connection
from .states import Grade, Outcome


@dataclass(frozen=True)
class Reliance:
    """`keys`: the same bytes may go out again under a living key. `absence`: nothing found, once it is quiet, is none."""

    keys: bool = False
    absence: bool = False


def declared(connection: Connection) -> Abilities:
    """What its connector declares; nothing where a release has none of that name any more."""
    connector = CONNECTORS.get(connection.connector)
    return connector.abilities_at(connection.base_url) if connector else NOTHING


def grade_of(proved: Collection[str]) -> Grade:
    """The grade that these proved abilities are worth."""
    if "honours_idempotency_keys" not in proved:
        return Grade.UNVERIFIABLE
    is_seen_in_time = {"can_look_up", "look_up_lag_seconds"} <= set(proved)
    return Grade.VERIFIABLE if is_seen_in_time else Grade.KEY_LIFETIME


def present_grade(connection: Connection) -> Grade | None:
    """The grade that counts now; None where none was given, or where it was another version's."""
    graded = _graded(connection)
    return None if graded is None else Grade(graded.grade)


def reliance(connection: Connection) -> Reliance:
    """What may be relied on over this connection after a lost answer; nothing where nothing is proved."""
    graded, can = _graded(connection), declared(connection)
    if graded is None:
        return Reliance()
    proved = {proof["ability"] for proof in graded.proofs if proof["outcome"] == Outcome.PROVED}
    return Reliance(
        keys=can.honours_idempotency_keys and "honours_idempotency_keys" in proved,
        absence=can.can_look_up and {"can_look_up", "look_up_lag_seconds"} <= proved,
    )


def _graded(connection: Connection) -> Connection | None:
    """The connection whose proofs count: itself, or for a live one, which is never tried out, a tested twin of its tenant."""
    if _is_current(connection):
        return connection
    if connection.mode != "live":
        return None
    twins = Connection.objects.filter(
        tenant_id=connection.tenant_id, connector=connection.connector, mode="test"
    ).order_by("-graded_at")
    can = declared(connection)
    return next((twin for twin in twins if _is_current(twin) and declared(twin) == can), None)


def _is_current(connection: Connection) -> bool:
    connector = CONNECTORS.get(connection.connector)  # a release may have none of that name any more
    return bool(connection.grade) and connector is not None and connection.graded_version == connector.version
