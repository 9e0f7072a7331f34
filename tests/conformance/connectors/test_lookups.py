"""What a look-up says: not there, there, settled later, undone, twice, and nothing at all."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from operations.connectors.base import CheckFailed, Window
from operations.states import Verdict
from tests.conformance.connectors.servers import Scripted
from tests.conformance.connectors.subjects import SUBJECTS, Subject
from tests.provider import Provider

REFUND, CANCEL, NOTE, _, REOPEN = SUBJECTS


def _wait_for(subject: Subject, call, verdict: Verdict) -> None:
    end = time.monotonic() + 3
    while (answer := subject.connector.look_up(call)).verdict != verdict:
        assert time.monotonic() < end, answer
        time.sleep(0.02)


def test_what_was_never_sent_is_absent(provider: Provider, subject: Subject) -> None:
    assert subject.connector.look_up(subject.call(provider)).verdict == Verdict.ABSENT


def test_what_took_effect_is_found_with_the_same_receipt(provider: Provider, subject: Subject) -> None:
    call = subject.call(provider)
    sent, found = subject.send(call), subject.connector.look_up(call)
    assert found.verdict == Verdict.APPLIED
    assert (found.provider_ref, found.receipt) == (sent.provider_ref, sent.receipt)


def test_a_known_reference_is_asked_first(provider: Provider, scripted: Scripted) -> None:
    scripted.says(404, b'{"error": {"type": "invalid_request_error", "code": "resource_missing"}}')
    call = REFUND.call(provider, base_url=scripted.url, provider_ref="re_known")
    assert REFUND.connector.look_up(call).verdict == Verdict.UNKNOWN
    asked = [taken.line.split()[1].partition("?")[0] for taken in scripted.taken]
    assert asked == ["/v1/refunds/re_known", "/v1/refunds"]


def test_within_the_lag_an_effect_is_absent_and_after_it_found(
    provider: Provider, http_subject: Subject
) -> None:
    call = http_subject.call(provider)
    provider.fault("lookup_lag", seconds=0.4)
    assert http_subject.send(call).verdict == Verdict.APPLIED
    assert http_subject.connector.look_up(call).verdict == Verdict.ABSENT
    _wait_for(http_subject, call, Verdict.APPLIED)
    assert http_subject.connector.abilities.look_up_lag_seconds == 2


def test_an_outage_says_nothing_about_the_effect(provider: Provider, http_subject: Subject) -> None:
    call = http_subject.call(provider)
    provider.fault("unreachable", door=http_subject.door)
    assert http_subject.connector.look_up(call).verdict == Verdict.UNREACHABLE


def test_a_refused_credential_says_nothing_about_the_effect(
    provider: Provider, http_subject: Subject
) -> None:
    call = http_subject.call(provider)
    provider.fault("auth_failed", door=http_subject.door)
    assert http_subject.connector.look_up(call).verdict == Verdict.BLOCKED


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_an_answer_of_the_provider_in_trouble_is_an_outage(
    provider: Provider, http_subject: Subject, scripted: Scripted, status: int
) -> None:
    call = http_subject.call(provider, base_url=scripted.url)
    scripted.says(status, b"{}")
    assert http_subject.connector.look_up(call).verdict == Verdict.UNREACHABLE


@pytest.mark.parametrize(
    ("status", "body"), [(200, b""), (200, b"[]"), (200, b"{}"), (404, b"{}"), (400, b"{}"), (302, b"")]
)
def test_an_answer_that_nobody_expects_is_neither_absence_nor_effect(
    provider: Provider, http_subject: Subject, scripted: Scripted, status: int, body: bytes
) -> None:
    call = http_subject.call(provider, base_url=scripted.url)
    scripted.says(status, body)
    assert http_subject.connector.look_up(call).verdict in (Verdict.UNKNOWN, Verdict.CONTRADICTION)


def _refunds(call, *ids: str, has_more: bool) -> bytes:
    ours = {
        "object": "refund", "amount": call.amount_minor, "currency": "eur", "status": "succeeded",
        "charge": call.params["charge"], "metadata": {"operation_id": call.operation_id},
    }  # fmt: skip
    data = [{"id": each, **ours} for each in ids]
    return json.dumps({"object": "list", "url": "/v1/refunds", "has_more": has_more, "data": data}).encode()


def test_an_effect_that_a_list_shows_twice_is_one(provider: Provider, scripted: Scripted) -> None:
    call = REFUND.call(provider, base_url=scripted.url)
    scripted.says(200, _refunds(call, "re_1", "re_1", has_more=False))
    found = REFUND.connector.look_up(call)
    assert (found.verdict, found.provider_ref) == (Verdict.APPLIED, "re_1")


@pytest.mark.parametrize("ids", [(), ("re_1",), ("re_1", "re_2")])
def test_a_list_that_says_there_is_more_and_does_not_go_on_proves_nothing(
    provider: Provider, scripted: Scripted, ids: tuple[str, ...]
) -> None:
    call = REFUND.call(provider, base_url=scripted.url)
    scripted.says(200, _refunds(call, *ids, has_more=True))
    found = REFUND.connector.look_up(call)
    assert (found.verdict, found.code) == (Verdict.UNKNOWN, "list_without_end")
    assert len(scripted.taken) <= 2


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"changes": [], "next": [1]}', b'{"changes": [], "next": "here"}', b'{"changes": [], "next": "%s"}' % (b"x" * 201),
        b'{"object": "list", "data": [], "has_more": true}', b'{"object": "list", "data": [{"a": 1}], "has_more": true}',
        b'{"data": ' + b"[" * 2_000 + b"]" * 2_000 + b"}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("subject", [REFUND, CANCEL], ids=lambda subject: subject.name)
def test_a_list_that_cannot_be_read_is_said_so(
    provider: Provider, scripted: Scripted, subject: Subject, body: bytes
) -> None:
    call, at = subject.call(provider, base_url=scripted.url), datetime.now(UTC)
    scripted.says(200, body)
    with pytest.raises(CheckFailed) as failed:
        subject.connector.list_effects(call, Window(at, at), "here")
    assert failed.value.retryable


def test_of_a_list_only_what_can_be_named_is_told(provider: Provider, scripted: Scripted) -> None:
    call, at = CANCEL.call(provider, base_url=scripted.url), datetime.now(UTC)
    garbage = [1, None, "x", {}, {"id": "\x00"}, {"id": "x" * 121}, {"id": "can_2", "order": ["A-1"]}]
    scripted.says(200, json.dumps({"changes": [*garbage, {"id": "can_1", "order": "订单 1"}]}).encode())
    page = CANCEL.connector.list_effects(call, Window(at, at), "")
    assert [(each.provider_ref, each.thing) for each in page.effects] == [("can_1", "订单 1")]


@pytest.mark.parametrize("subject", [REFUND, NOTE], ids=lambda subject: subject.name)
def test_two_effects_of_one_operation_are_a_contradiction(provider: Provider, subject: Subject) -> None:
    call = subject.call(provider)
    provider.fault("no_key_support")
    for _ in range(2):
        subject.send(call)
    assert len(subject.effects(provider, call)) == 2
    found = subject.connector.look_up(call)
    assert (found.verdict, found.code) == (Verdict.CONTRADICTION, "two_effects")


@pytest.mark.parametrize(
    ("settles", "verdict"), [("succeeded", Verdict.APPLIED), ("failed", Verdict.REFUSED)]
)
def test_an_accepted_refund_is_accepted_until_it_settles(
    provider: Provider, settles: str, verdict: Verdict
) -> None:
    call = REFUND.call(provider)
    provider.fault("pending_then", status=settles, seconds=0.3, times=1)
    accepted = REFUND.send(call)
    assert (accepted.verdict, accepted.code) == (Verdict.ACCEPTED, "pending")
    known = replace(call, provider_ref=accepted.provider_ref)
    assert REFUND.connector.look_up(known).verdict == Verdict.ACCEPTED
    _wait_for(REFUND, known, verdict)


def test_a_refund_that_bounces_is_reversed_where_we_hold_its_receipt(provider: Provider) -> None:
    call = REFUND.call(provider)
    provider.fault("bounce_after", seconds=0.05, times=1)
    sent = REFUND.send(call)
    assert sent.verdict == Verdict.APPLIED
    _wait_for(REFUND, replace(call, provider_ref=sent.provider_ref, succeeded=True), Verdict.REVERSED)
    assert REFUND.connector.look_up(call).verdict == Verdict.REFUSED  # its success was never ours to tell


def test_a_wrong_amount_in_the_answer_is_set_right_by_the_look_up(provider: Provider) -> None:
    call = REFUND.call(provider)
    provider.fault("wrong_amount", times=1)
    doubted = REFUND.send(call)
    assert doubted.code == "other_amount"
    found = REFUND.connector.look_up(replace(call, provider_ref=doubted.provider_ref))
    assert (found.verdict, found.amount_minor) == (Verdict.APPLIED, call.amount_minor)


def test_a_reference_of_somebody_else_proves_nothing(provider: Provider) -> None:
    order = provider.order()
    other, call = REFUND.call(provider, order), REFUND.call(provider, order)
    reference = REFUND.send(other).provider_ref
    assert REFUND.connector.look_up(replace(call, provider_ref=reference)).verdict == Verdict.ABSENT
    assert REFUND.connector.look_up(replace(call, provider_ref="re_gone")).verdict == Verdict.ABSENT


def test_an_operation_that_was_lost_and_proposed_again_meets_its_old_self(provider: Provider) -> None:
    lost = REFUND.call(provider)
    reference = REFUND.send(lost).provider_ref
    again = replace(lost, operation_id=REFUND.call(provider).operation_id)
    assert REFUND.send(again).verdict == Verdict.CONTRADICTION
    found = REFUND.connector.look_up(again)
    assert (found.verdict, found.provider_ref) == (Verdict.APPLIED, reference)
    assert len(REFUND.effects(provider, lost)) == 1


def test_a_cancellation_that_was_lost_and_proposed_again_meets_its_old_self(provider: Provider) -> None:
    lost = CANCEL.call(provider)
    reference = CANCEL.send(lost).provider_ref
    again = replace(lost, operation_id=CANCEL.call(provider).operation_id)
    answer = CANCEL.send(again)
    assert (answer.verdict, answer.provider_ref) == (Verdict.APPLIED, reference)


def test_a_cancellation_that_was_taken_back_is_still_found_as_ours(provider: Provider) -> None:
    order = provider.order()
    ours = CANCEL.call(provider, order)
    reference = CANCEL.send(ours).provider_ref
    undone = CANCEL.connector.reversal(replace(ours, provider_ref=reference))
    assert undone == {"order": order["id"], "cancellation": reference}
    reopening = replace(REOPEN.call(provider), target=order["id"], params=undone)
    assert REOPEN.send(reopening).verdict == Verdict.APPLIED
    found = CANCEL.connector.look_up(ours)  # never sent again: it did happen
    assert (found.verdict, found.provider_ref) == (Verdict.APPLIED, reference)
    again = CANCEL.call(provider, order)
    assert CANCEL.connector.look_up(again).verdict == Verdict.ABSENT
    second = CANCEL.send(again)
    assert second.verdict == Verdict.APPLIED
    assert second.provider_ref != reference
    assert CANCEL.connector.look_up(ours).provider_ref == reference
    assert CANCEL.connector.look_up(again).provider_ref == second.provider_ref


def test_the_list_of_changes_tells_a_reopening_and_what_it_was_meant_to_be(provider: Provider) -> None:
    call, now = REOPEN.call(provider), datetime.now(UTC)
    reference = REOPEN.send(call).provider_ref
    window = Window(now - timedelta(minutes=5), now + timedelta(minutes=5))
    cursor, told = "", []
    while True:
        page = REOPEN.connector.list_effects(call, window, cursor)
        told += [each for each in page.effects if each.thing == call.target]
        if not (cursor := page.cursor):
            break
    cancelled, reopened = told
    assert (reopened.operation_id, reopened.provider_ref) == (call.operation_id, reference)
    assert cancelled.provider_ref == call.params["cancellation"]
    for each, action in ((cancelled, CANCEL), (reopened, REOPEN)):
        intent = REOPEN.connector.intent_of(each)
        assert (intent.action.name, intent.target) == (action.name, call.target)
        intent.action.params.model_validate(intent.params)
    assert REOPEN.connector.intent_of(reopened).params == call.params
    assert REOPEN.connector.hear(call, reopened).verdict == Verdict.APPLIED


def test_a_charge_with_many_refunds_is_read_to_its_end(provider: Provider) -> None:
    order = provider.order()
    first = REFUND.call(provider, order)
    small = {**first.params, "amount_minor": 1}
    first = replace(first, amount_minor=1, params=small)
    assert REFUND.send(first).verdict == Verdict.APPLIED
    for _ in range(100):
        assert (
            REFUND.send(replace(REFUND.call(provider, order), amount_minor=1, params=small)).verdict
            == Verdict.APPLIED
        )
    assert REFUND.connector.look_up(first).verdict == Verdict.APPLIED
