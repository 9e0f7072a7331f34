"""From the other side: a provider's effects in a window, each matched with the operation that it belongs to."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import OperationalError, transaction
from django.db.models import F, Q

from agentops.kernel.clock import Now, now
from agentops.kernel.ids import parse
from agentops.kernel.transitions import LostRace
from agentops.telemetry.logs import bound_contextvars, logger
from agentops.tenancy import vault

from . import unmatched
from .adoption import THERE, adopt, key_of, settle_unsent
from .connectors.base import Answer, CheckFailed, Page, Told, Window, key_digest
from .connectors.registry import CONNECTORS
from .contract import ground
from .dispatch import Authority, call_of, loaded
from .evidence import Evidence
from .findings import take
from .grades import declared
from .incidents import open_at
from .models import Attempt, Connection, Operation, Sweep, Target, Unmatched
from .states import FINAL, OperationStatus, Source, Verdict
from .targets import remember_facts

log = logger(__name__)

EVERY = timedelta(days=1)
OVERLAP = timedelta(
    hours=1
)  # with the window before: what a lagging list did not show yet, and clocks that differ
LEASE = timedelta(minutes=2)  # for one page
PAGES_AT_ONCE = 20
KEPT_AT_ONCE = 500
NOT_THERE = (Verdict.REFUSED, Verdict.REVERSED)
OURS, FOREIGN, ADOPTED = "ours", "foreign", "adopted"
TRIAL, UNCLEAR = "trial", "unclear"  # of a contract test; ours, and it tells too little to be an operation


def due() -> list[Connection]:
    """Connections whose provider can list, and whose last window ended a day ago or is not through."""
    rows = Connection.objects.filter(enabled=True).select_related("tenant").order_by("id")
    at = now()
    return [row for row in rows if declared(row).can_list and _is_due(row, at - EVERY)]


def _is_due(connection: Connection, since: datetime) -> bool:
    last = Sweep.objects.filter(connection=connection).order_by("-id").first()
    return last is None or last.finished_at is None or last.until <= since


def begin(connection: Connection) -> Sweep:
    """The open sweep of a connection, or a new one whose window begins where the last one ended: no day is missed."""
    last = Sweep.objects.filter(connection=connection).order_by("-id").first()
    if last is not None and last.finished_at is None:
        return last
    since = last.until if last is not None else connection.created_at
    sweep, _ = Sweep.objects.get_or_create(
        tenant_id=connection.tenant_id,
        connection=connection,
        finished_at=None,
        defaults={"since": since - OVERLAP, "until": now()},
    )
    return sweep


def carry_on(
    connection: Connection,
    authority: Authority,
    *,
    pages: int = PAGES_AT_ONCE,
    tell: Callable[[Sweep], None] = lambda _: None,
) -> Sweep:
    """Go on with the open sweep of a connection for some pages. Raises CheckFailed where the provider cannot be read.

    Whoever dies in the middle has lost one page's work, which is begun again and changes nothing the second time.
    """
    sweep = begin(connection)
    with bound_contextvars(tenant=connection.tenant.slug):
        for _ in range(pages):
            if sweep.finished_at is not None or not _claim(sweep):
                break
            _one_page(connection, sweep, authority)
            sweep.refresh_from_db()
            tell(sweep)
    return sweep


def sweep_due(authority: Authority) -> int:
    """What beat asks for: every connection that is due goes on for some pages; returns how many did."""
    went = 0
    for connection in due():
        try:
            carry_on(connection, authority)
            went += 1
        except CheckFailed as failed:
            log.warning("sweep_cannot_read", connection=connection.public_id, code=failed.code)
        except Exception:  # a fault with one provider's list is none with the others'
            log.exception("sweep_failed", connection=connection.public_id)
    return went


def _claim(sweep: Sweep) -> bool:
    """One sweeper at a time; the lease of one that died runs out."""
    free = Q(lease_expires_at=None) | Q(lease_expires_at__lte=Now())
    mine = Sweep.objects.filter(free, pk=sweep.pk, finished_at=None)
    return bool(mine.update(lease_expires_at=now() + LEASE))


def _one_page(connection: Connection, sweep: Sweep, authority: Authority) -> None:
    connector = CONNECTORS[connection.connector]
    try:
        page = connector.list_effects(ground(connection), Window(sweep.since, sweep.until), sweep.cursor)
    except CheckFailed:
        Sweep.objects.filter(pk=sweep.pk).update(lease_expires_at=None)
        raise
    found = _match_all(connection, page.effects, authority)
    if not page.cursor:
        found += _match_all(connection, _kept(connection), authority, is_kept=True)
    _store(sweep, page, found)
    log.info("swept_page", connection=connection.public_id, effects=len(page.effects), **found)


def _store(sweep: Sweep, page: Page, found: Counter[str]) -> None:
    """Where it goes on, and what was counted, unless somebody else has stored this page already."""
    Sweep.objects.filter(pk=sweep.pk, cursor=sweep.cursor, finished_at=None).update(
        cursor=page.cursor,
        listed=F("listed") + len(page.effects),
        ours=F("ours") + found[OURS],
        foreign=F("foreign") + found[FOREIGN],
        adopted=F("adopted") + found[ADOPTED],
        lease_expires_at=None,
        finished_at=None if page.cursor else now(),
    )


def _match_all(
    connection: Connection, effects: Collection[Told], authority: Authority, *, is_kept: bool = False
) -> Counter[str]:
    found: Counter[str] = Counter()
    strange: set[str] = set()
    for told in effects:
        try:
            kind, operation = _match(connection, told, authority)
        except (LostRace, OperationalError):
            raise  # begun again: what has been matched of this page changes nothing the second time
        except (
            Exception
        ):  # its row was altered, or cannot be read: somebody has to look, and the others go on
            log.exception("sweep_cannot_match", provider_ref=told.provider_ref)
            open_at(connection, "effect_unreadable")
            kind, operation = UNCLEAR, None
        if not is_kept or kind == ADOPTED:
            found[kind] += 1
        if kind == FOREIGN and told.thing:
            strange.add(told.thing)
        _close_kept(connection, told.provider_ref, kind, operation)
    for target in Target.objects.filter(connection=connection, thing__in=strange):
        recount(target)
    return found


def _match(connection: Connection, told: Told, authority: Authority) -> tuple[str, Operation | None]:
    """Whose effect it is; where it is ours and not accounted for, it is by then."""
    if told.operation_id.startswith("trial_"):
        return TRIAL, None
    operation = _whose(connection, told)
    if operation is not None:
        return _ours(connection, told, operation, authority)
    if (adopted := _adopted(connection, told)) is not None:
        return OURS, adopted
    named = parse("op", told.operation_id)
    if named is None or Operation.objects.filter(pk=named).exists():  # another tenant's, on the same account
        return FOREIGN, None
    return _adopt(connection, told, None)


def _whose(connection: Connection, told: Told) -> Operation | None:
    """By the operation that it names, or by the key that it was made under: a lost one may have been proposed again."""
    mine = Operation.objects.filter(tenant_id=connection.tenant_id, connection=connection)
    operation_id = parse("op", told.operation_id)
    named = mine.filter(pk=operation_id).first() if operation_id else None
    if named is not None or not told.key_digest:
        return named
    near = mine.filter(target__thing=told.thing) if told.thing else mine.none()
    keys = Attempt.objects.filter(operation__in=near).values_list("operation_id", "idempotency_key")
    owner = next((owner for owner, key in keys if key_digest(key) == told.key_digest), None)
    return mine.filter(pk=owner).first() if owner else None


def _ours(
    connection: Connection, told: Told, operation: Operation, authority: Authority
) -> tuple[str, Operation | None]:
    operation = loaded(operation.id)
    is_known = operation.status == OperationStatus.SUCCEEDED and operation.provider_ref == told.provider_ref
    answer = CONNECTORS[connection.connector].hear(call_of(operation), told)
    if is_known and answer.verdict in THERE:
        return OURS, operation
    if operation.status in FINAL - {OperationStatus.SUCCEEDED} and answer.verdict in THERE:
        if (adopted := _adopted(connection, told)) is not None:
            return OURS, adopted
        take(operation.id, Evidence(Source.SWEEP, answer))
        return _adopt(connection, told, operation)
    if operation.status in FINAL and not is_known and answer.verdict in NOT_THERE:
        return OURS, operation  # it did not happen, and that is what is known
    unsent = operation.attempts == 0 and operation.status not in FINAL
    settle_unsent(operation.id, answer, authority)
    return (ADOPTED if unsent and answer.verdict in THERE else OURS), operation


def _adopted(connection: Connection, told: Told) -> Operation | None:
    return Operation.objects.filter(
        tenant_id=connection.tenant_id, operation_key=key_of(connection, told.provider_ref)
    ).first()


def _adopt(connection: Connection, told: Told, previous: Operation | None) -> tuple[str, Operation | None]:
    connector = CONNECTORS[connection.connector]
    intent = connector.intent_of(told)
    if intent is None:
        unmatched.keep(connection, Source.SWEEP, _bare(told), claims=told.operation_id)
        return UNCLEAR, None
    money = (told.amount_minor or 0, told.currency)
    asked = ground(connection).asking(intent.action, intent.target, intent.params, money)
    answer = connector.hear(replace(asked, operation_id=told.operation_id), told)
    if answer.verdict not in THERE:
        return OURS, None  # it did not happen, or was undone: there is nothing to account for
    made = adopt(connection, told, intent, answer, previous)
    recount(made.target)
    return ADOPTED, made


def _bare(told: Told) -> Answer:
    return Answer(
        Verdict.UNKNOWN,
        provider_ref=told.provider_ref,
        receipt=told.effect,
        amount_minor=told.amount_minor,
        currency=told.currency,
    )


def _kept(connection: Connection) -> list[Told]:
    """What the provider told us by itself and nobody could place then."""
    rows = Unmatched.objects.filter(connection=connection, closed_at=None).order_by("id")[:KEPT_AT_ONCE]
    shown = [vault.unseal(unmatched.evidence_place(row.id), row.sealed_evidence)["receipt"] for row in rows]
    connector = CONNECTORS[connection.connector]
    return [told for effect in shown if (told := connector.tell(effect)) is not None]


def _close_kept(connection: Connection, reference: str, kind: str, operation: Operation | None) -> None:
    how = {OURS: "matched", ADOPTED: "adopted", FOREIGN: "foreign", TRIAL: "foreign"}.get(kind)
    rows = Unmatched.objects.filter(connection=connection, provider_ref=reference, closed_at=None)
    for row in rows if how else ():
        unmatched.close(row, how or "", operation)


def recount(target: Target) -> None:
    """Read anew what a target can still give, where somebody else has taken of it since."""
    newest = Operation.objects.filter(target=target, amount_minor__isnull=False).order_by("-id").first()
    if newest is None:
        return
    operation = loaded(newest.id)
    try:
        facts = CONNECTORS[operation.connection.connector].check(call_of(operation))
    except CheckFailed as failed:  # the look before the next proposal or sending will count it
        log.info("target_not_recounted", target=str(target), code=failed.code)
        return
    with transaction.atomic():
        remember_facts(Target.objects.select_for_update(no_key=True).get(pk=target.pk), facts)
