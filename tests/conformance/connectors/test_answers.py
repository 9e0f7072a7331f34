"""Every row of "what an answer means", for every action that speaks to the provider over HTTP."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from operations.states import Verdict
from tests.conformance.connectors.servers import Scripted
from tests.conformance.connectors.subjects import SUBJECTS, Subject
from tests.provider import Provider


@dataclass(frozen=True)
class Row:
    fault: str
    verdict: Verdict
    effects: int
    more: dict[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 2.0
    door: str = ""  # at one door only

    def __str__(self) -> str:
        return "-".join([self.fault, *(str(value) for value in self.more.values())])


ROWS = [
    Row("ok", Verdict.APPLIED, 1),
    Row("slow", Verdict.APPLIED, 1, {"seconds": 0.2}),
    Row("pending_then", Verdict.ACCEPTED, 1, {"seconds": 60}, door="payments"),
    Row("reject", Verdict.REFUSED, 0, {"code": "charge_disputed"}, door="payments"),
    Row("reject", Verdict.REFUSED, 0, {"code": "card_declined"}, door="payments"),
    Row("reject", Verdict.BLOCKED, 0, {"code": "account_closed"}, door="payments"),
    Row("reject", Verdict.REFUSED, 0, {"code": "order_locked"}, door="shop"),
    Row("reject", Verdict.UNKNOWN, 0, {"code": "never_heard_of"}),
    Row("reject", Verdict.BLOCKED, 0, {"code": "not_permitted", "status": 403}),
    Row("auth_failed", Verdict.BLOCKED, 0),
    Row("unreachable", Verdict.NOT_SENT, 0),
    Row("rate_limited", Verdict.NOT_SENT, 0),
    Row("slow_after", Verdict.UNKNOWN, 1, {"seconds": 5}, timeout_seconds=0.3),
    Row("commit_then_drop", Verdict.UNKNOWN, 1),
    Row("drop_before_commit", Verdict.UNKNOWN, 0),
    Row("commit_then_500", Verdict.UNKNOWN, 1),
    Row("empty_200", Verdict.CONTRADICTION, 0),
    Row("wrong_amount", Verdict.CONTRADICTION, 1, door="payments"),
]
CASES = [
    pytest.param(subject, row, id=f"{subject.name}-{row}")
    for subject in SUBJECTS
    for row in ROWS
    if subject.is_http and row.door in ("", subject.door)
]


@pytest.mark.parametrize(("subject", "row"), CASES)
def test_an_answer_means_what_the_table_says(provider: Provider, subject: Subject, row: Row) -> None:
    call = subject.call(provider, timeout_seconds=row.timeout_seconds)
    provider.fault(row.fault, times=1, door=subject.door, **row.more)
    began = time.monotonic()
    answer = subject.send(call)
    assert time.monotonic() - began < row.timeout_seconds + 0.5
    assert (answer.verdict, len(subject.effects(provider, call))) == (row.verdict, row.effects)
    assert (answer.receipt is not None and answer.provider_ref != "") is (
        row.verdict in (Verdict.APPLIED, Verdict.ACCEPTED) or row.fault == "wrong_amount"
    )
    assert answer.code or answer.verdict == Verdict.APPLIED


def test_a_rate_limit_says_how_long(provider: Provider, http_subject: Subject) -> None:
    call = http_subject.call(provider)
    provider.fault("rate_limited", times=1)
    assert http_subject.send(call).retry_after_seconds == 1.0


def test_the_same_request_under_its_key_has_one_effect(provider: Provider, subject: Subject) -> None:
    call = subject.call(provider)
    request = subject.connector.build(call)
    answers = [subject.connector.send(call, request, lambda: None) for _ in range(2)]
    assert [answer.verdict for answer in answers] == [Verdict.APPLIED, Verdict.APPLIED]
    assert answers[0].provider_ref == answers[1].provider_ref
    assert len(subject.effects(provider, call)) == 1


def test_a_lost_answer_is_found_again_under_its_key(provider: Provider, http_subject: Subject) -> None:
    call = http_subject.call(provider)
    provider.fault("commit_then_drop", times=1)
    assert http_subject.send(call).verdict == Verdict.UNKNOWN
    assert http_subject.send(call).verdict == Verdict.APPLIED
    assert len(http_subject.effects(provider, call)) == 1


def test_another_body_under_our_key_is_a_contradiction(provider: Provider, subject: Subject) -> None:
    call = subject.call(provider)
    assert subject.send(call).verdict == Verdict.APPLIED
    changed = replace(call, params={**call.params, **subject.other_body})
    assert subject.send(changed).verdict == Verdict.CONTRADICTION
    assert len(subject.effects(provider, call)) == 1


@pytest.mark.parametrize(("fault", "effects"), [("commit_then_500", 1), ("reject", 0)])
def test_a_replayed_error_spends_the_generation(
    provider: Provider, http_subject: Subject, fault: str, effects: int
) -> None:
    call = http_subject.call(provider)
    provider.fault(fault, times=1)
    http_subject.send(call)
    assert http_subject.send(call).verdict == Verdict.SPENT
    assert len(http_subject.effects(provider, call)) == effects


def test_a_twin_in_flight_is_busy(provider: Provider, http_subject: Subject) -> None:
    call = http_subject.call(provider)
    provider.fault("slow", seconds=0.6, times=1)
    with ThreadPoolExecutor(1) as pool:
        before = provider.writes()
        first = pool.submit(http_subject.send, call)
        while provider.writes() == before:
            time.sleep(0.01)
        time.sleep(0.05)  # counted just before its key is claimed
        assert http_subject.send(call).verdict == Verdict.BUSY
        assert first.result().verdict == Verdict.APPLIED
    assert len(http_subject.effects(provider, call)) == 1


def test_a_connection_that_is_cut_leaves_it_unknown(provider: Provider, http_subject: Subject) -> None:
    call = http_subject.call(provider, timeout_seconds=5.0)
    provider.fault("slow_after", seconds=5, times=1, door=http_subject.door)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(http_subject.send, call)
        while not http_subject.effects(provider, call):
            time.sleep(0.01)
        provider.fault("unreachable", door=http_subject.door)
        assert sent.result().verdict == Verdict.UNKNOWN


def test_a_wrong_key_is_blocked_everywhere(provider: Provider) -> None:
    subject = SUBJECTS[0]
    call = subject.call(provider, credential="sk_test_wrong_key")
    for answer in (subject.send(call), subject.connector.look_up(call)):
        assert answer.verdict == Verdict.BLOCKED
        assert "wrong_key" not in repr(answer)
    assert subject.effects(provider, call) == []


@pytest.mark.parametrize("shop_subject", SUBJECTS[1:3], ids=lambda subject: subject.name)
def test_an_identity_that_the_shop_does_not_know_is_blocked(
    provider: Provider, shop_subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = shop_subject.call(provider)
    monkeypatch.setattr("agentops.tenancy.identity.sign", lambda **_: "not.a.token")
    assert shop_subject.send(call).verdict == Verdict.BLOCKED
    assert shop_subject.connector.look_up(call).verdict == Verdict.BLOCKED


def _refund_of(call: Any, **changed: Any) -> bytes:
    metadata = {"operation_id": call.operation_id}
    refund = {
        "id": "re_1", "object": "refund", "amount": call.amount_minor, "currency": "eur", "status": "succeeded",
        "charge": call.params["charge"], "metadata": metadata,
    }  # fmt: skip
    return json.dumps({**refund, **changed}).encode()


@pytest.mark.parametrize(
    ("changed", "verdict", "code"),
    [
        ({}, Verdict.APPLIED, ""),
        ({"status": "pending"}, Verdict.ACCEPTED, "pending"),
        ({"status": "requires_action"}, Verdict.ACCEPTED, "requires_action"),
        (
            {"status": "failed", "failure_reason": "lost_or_stolen_card"},
            Verdict.REFUSED,
            "lost_or_stolen_card",
        ),
        ({"status": "canceled"}, Verdict.REFUSED, "canceled"),
        ({"status": "what_is_this"}, Verdict.UNKNOWN, "status_unknown"),
        ({"amount": 1}, Verdict.CONTRADICTION, "other_amount"),
        ({"currency": "usd"}, Verdict.CONTRADICTION, "other_currency"),
        ({"charge": "ch_other"}, Verdict.CONTRADICTION, "other_charge"),
        ({"metadata": {"operation_id": "op_other"}}, Verdict.CONTRADICTION, "other_operation"),
        ({"metadata": None}, Verdict.CONTRADICTION, "other_operation"),
        ({"id": ""}, Verdict.CONTRADICTION, "no_receipt"),
        ({"id": None}, Verdict.CONTRADICTION, "no_receipt"),
        ({"amount": "1000"}, Verdict.CONTRADICTION, "no_receipt"),
        ({"object": "charge"}, Verdict.CONTRADICTION, "no_receipt"),
    ],
)
def test_a_refund_object_is_read_with_care(
    provider: Provider, scripted: Scripted, changed: dict[str, Any], verdict: Verdict, code: str
) -> None:
    call = SUBJECTS[0].call(provider, base_url=scripted.url)
    scripted.says(200, _refund_of(call, **changed))
    answer = SUBJECTS[0].send(call)
    assert (answer.verdict, answer.code) == (verdict, code)


def _error(**fields: str) -> bytes:
    return json.dumps({"error": fields}).encode()


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (200, b"", Verdict.CONTRADICTION),
        (200, b"not json", Verdict.CONTRADICTION),
        (200, b"[]", Verdict.CONTRADICTION),
        (200, b'"refund"', Verdict.CONTRADICTION),
        (204, b"", Verdict.CONTRADICTION),
        (200, b'{"id": ' + b"[" * 2_000 + b"]" * 2_000 + b"}", Verdict.CONTRADICTION),
        (200, b'{"id": ' + b"[" * 90_000 + b"]" * 90_000 + b"}", Verdict.CONTRADICTION),
        (302, b"", Verdict.UNKNOWN),
        (400, b"not json", Verdict.UNKNOWN),
        (400, b'{"error": "a word"}', Verdict.UNKNOWN),
        (404, b"<h1>no such page</h1>", Verdict.UNKNOWN),
        (403, b"", Verdict.BLOCKED),
        (500, b"", Verdict.UNKNOWN),
        (502, b"<h1>bad gateway</h1>", Verdict.UNKNOWN),
        (503, b"", Verdict.UNKNOWN),
        (504, b"", Verdict.UNKNOWN),
    ],
)
def test_an_answer_that_nobody_expects_is_never_taken_for_an_effect_or_a_no(
    provider: Provider, http_subject: Subject, scripted: Scripted, status: int, body: bytes, verdict: Verdict
) -> None:
    call = http_subject.call(provider, base_url=scripted.url)
    scripted.says(status, body, Location="/elsewhere")
    assert http_subject.send(call).verdict == verdict
    assert len(scripted.taken) == 1


@pytest.mark.parametrize(
    ("status", "error", "verdict"),
    [
        (400, {"type": "invalid_request_error", "code": "charge_already_refunded"}, Verdict.REFUSED),
        (400, {"type": "invalid_request_error", "param": "amount"}, Verdict.REFUSED),
        (
            404,
            {"type": "invalid_request_error", "code": "resource_missing", "param": "charge"},
            Verdict.REFUSED,
        ),
        (402, {"type": "card_error", "code": "expired_card"}, Verdict.REFUSED),
        (400, {"type": "invalid_request_error"}, Verdict.UNKNOWN),
        (400, {"type": "api_error", "param": "amount"}, Verdict.UNKNOWN),
        (400, {"type": "idempotency_error"}, Verdict.CONTRADICTION),
        (400, {"type": "invalid_request_error", "code": "rate_limit"}, Verdict.NOT_SENT),
        (429, {"type": "invalid_request_error", "code": "lock_timeout"}, Verdict.NOT_SENT),
        (409, {"type": "idempotency_error"}, Verdict.BUSY),
        (401, {"type": "invalid_request_error", "code": "api_key_expired"}, Verdict.BLOCKED),
        (400, {"type": "invalid_request_error", "code": "testmode_charges_only"}, Verdict.BLOCKED),
    ],
)
def test_an_error_of_stripe_has_one_class(
    provider: Provider, scripted: Scripted, status: int, error: dict[str, str], verdict: Verdict
) -> None:
    call = SUBJECTS[0].call(provider, base_url=scripted.url)
    scripted.says(status, _error(message="No.", **error))
    assert SUBJECTS[0].send(call).verdict == verdict


def test_an_over_refund_is_refused_for_good(provider: Provider) -> None:
    subject, order = SUBJECTS[0], provider.order()
    call = subject.call(provider, order)
    greedy = replace(call, amount_minor=5_001, params={**call.params, "amount_minor": 5_001})
    answer = subject.send(greedy)
    assert answer.verdict == Verdict.REFUSED
    assert "greater than unrefunded amount" in answer.detail


def test_an_order_that_somebody_else_cancelled_is_refused_and_our_own_is_not(provider: Provider) -> None:
    subject, order = SUBJECTS[1], provider.order()
    first, second = subject.call(provider, order), subject.call(provider, order)
    assert subject.send(first).verdict == Verdict.APPLIED
    assert subject.send(second).code == "already_cancelled"
    assert subject.send(second).verdict == Verdict.SPENT
    assert subject.connector.look_up(second).verdict == Verdict.REFUSED
    forgotten = replace(first, idempotency_key=first.idempotency_key + "_next")
    assert subject.send(forgotten).verdict == Verdict.APPLIED


def test_a_cancellation_that_somebody_else_took_back_is_refused_and_our_own_is_not(
    provider: Provider,
) -> None:
    subject = SUBJECTS[4]
    first = subject.call(provider)
    second = replace(first, operation_id="op_second", idempotency_key=first.idempotency_key + "_second")
    assert subject.send(first).verdict == Verdict.APPLIED
    assert (subject.send(second).verdict, subject.connector.look_up(second).code) == (
        Verdict.REFUSED,
        "already_reopened",
    )
    forgotten = replace(first, idempotency_key=first.idempotency_key + "_next")
    assert subject.send(forgotten).verdict == Verdict.APPLIED
    never = replace(second, params={**first.params, "cancellation": "can_none"}, idempotency_key="ao_never")
    answer = subject.send(never)
    assert (answer.verdict, answer.code) == (Verdict.REFUSED, "not_cancelled")


@pytest.mark.parametrize(
    ("subject", "changed", "code"),
    [
        (SUBJECTS[1], {"order": "A-1"}, "other_order"),
        (SUBJECTS[1], {"id": None}, "no_receipt"),
        (SUBJECTS[4], {"order": "A-1"}, "other_order"),
        (SUBJECTS[4], {"cancellation": "can_other"}, "other_cancellation"),
        (SUBJECTS[2], {"operation_id": "op_other"}, "other_operation"),
        (SUBJECTS[2], {"operation_id": None}, "other_operation"),
    ],
)
def test_an_effect_of_the_shop_that_is_not_ours_is_a_contradiction(
    provider: Provider, scripted: Scripted, subject: Subject, changed: dict[str, Any], code: str
) -> None:
    call = subject.call(provider, base_url=scripted.url)
    effect = {"id": "x_1", "order": call.target, "operation_id": call.operation_id, **changed}
    scripted.says(201, json.dumps(effect).encode())
    answer = subject.send(call)
    assert (answer.verdict, answer.code) == (Verdict.CONTRADICTION, code)


@pytest.mark.parametrize("subject", SUBJECTS[1:3], ids=lambda subject: subject.name)
def test_a_shop_that_cannot_read_our_keys_has_done_nothing(
    provider: Provider, scripted: Scripted, subject: Subject
) -> None:
    scripted.says(503, b'{"error": {"code": "identity_keys_unavailable", "message": "Nothing was done."}}')
    assert subject.send(subject.call(provider, base_url=scripted.url)).verdict == Verdict.NOT_SENT
