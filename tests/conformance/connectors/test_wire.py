"""What leaves: exactly the pinned bytes, once, in time, in somebody's name, and not at all when it is too late."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jwt
import pytest

from operations.connectors.base import PastSendBy
from operations.connectors.wire import MAX_ANSWER_BYTES
from operations.states import Verdict
from tests.conformance.connectors.servers import Scripted
from tests.conformance.connectors.subjects import SUBJECTS, Subject
from tests.provider import STRIPE_KEY, Provider


def _too_late() -> None:
    raise PastSendBy


def test_what_is_past_send_by_never_leaves(provider: Provider, subject: Subject) -> None:
    call = subject.call(provider)
    before = provider.writes()
    with pytest.raises(PastSendBy):
        subject.send(call, _too_late)
    assert provider.writes() == before
    assert subject.effects(provider, call) == []
    assert subject.send(call).verdict == Verdict.APPLIED  # the connection that was given up spoils nothing


def test_the_first_byte_is_asked_for_on_an_open_connection_only(
    provider: Provider, http_subject: Subject
) -> None:
    call = http_subject.call(provider)
    provider.fault("unreachable", door=http_subject.door)
    assert http_subject.send(call, _too_late).verdict == Verdict.NOT_SENT


def test_the_first_byte_is_asked_for_once_and_before_anything_arrives(
    provider: Provider, http_subject: Subject, scripted: Scripted
) -> None:
    asked = []
    call = http_subject.call(provider, base_url=scripted.url)
    http_subject.send(call, lambda: asked.append(len(scripted.taken)))
    assert asked == [0]
    assert len(scripted.taken) == 1


def test_a_name_that_does_not_resolve_is_surely_not_sent(provider: Provider, http_subject: Subject) -> None:
    call = http_subject.call(provider, base_url="http://nowhere.invalid")
    assert http_subject.send(call).verdict == Verdict.NOT_SENT


def test_a_generation_is_sent_again_as_the_same_bytes(
    provider: Provider, http_subject: Subject, scripted: Scripted
) -> None:
    call = http_subject.call(provider, base_url=scripted.url)
    request = http_subject.connector.build(call)
    assert http_subject.connector.build(call) == request
    for _ in range(2):
        http_subject.connector.send(call, request, lambda: None)
    first, second = scripted.taken
    assert first.body == second.body == request.body
    assert first.line == second.line == f"{request.method} {request.path} HTTP/1.1"
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] == call.idempotency_key


def test_a_record_that_differs_from_the_pinned_bytes_is_not_sent(
    provider: Provider, scripted: Scripted
) -> None:
    subject = SUBJECTS[0]
    call = subject.call(provider, base_url=scripted.url)
    request = subject.connector.build(call)
    changed = replace(call, params={**call.params, **subject.other_body})
    answer = subject.connector.send(changed, request, lambda: None)
    assert (answer.verdict, answer.code) == (Verdict.NOT_SENT, "request_changed")
    assert scripted.taken == []


def test_the_request_says_whose_operation_it_is(
    provider: Provider, http_subject: Subject, scripted: Scripted
) -> None:
    call = http_subject.call(provider, base_url=scripted.url, actor="customer:A-C1001")
    http_subject.send(call)
    claims = jwt.decode(scripted.taken[0].headers["txn-token"], options={"verify_signature": False})
    assert claims["aud"] == http_subject.door
    assert (claims["sub"], claims["scope"], claims["act"]["sub"]) == (
        call.actor,
        call.action,
        "agent:support-agent",
    )
    assert claims["tctx"] == {
        "tenant": "acme",
        "operation_id": call.operation_id,
        "target": f"{call.target_type}:{call.target}",
    }


def test_a_refund_carries_its_marks_and_nobodys_words(provider: Provider, scripted: Scripted) -> None:
    call = SUBJECTS[0].call(provider, base_url=scripted.url)
    SUBJECTS[0].send(call)
    sent = scripted.taken[0]
    assert f"metadata[operation_id]={call.operation_id}".encode() in sent.body
    assert b"metadata[key_digest]=" in sent.body
    assert b"reason=requested_by_customer" in sent.body
    assert b"lamp" not in sent.body
    assert call.idempotency_key.encode() not in sent.body
    assert STRIPE_KEY.encode() not in sent.body
    assert sent.headers["stripe-version"] == SUBJECTS[0].connector.build(call).api_version
    assert STRIPE_KEY not in repr(call)


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\n", b"X-Drop: 1\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
    ],
    ids=["body", "headers", "size of a chunk"],
)
def test_an_answer_that_drips_ends_with_the_time_out(
    provider: Provider, http_subject: Subject, scripted: Scripted, head: bytes, drop: bytes
) -> None:
    call = http_subject.call(provider, base_url=scripted.url, timeout_seconds=0.5)
    scripted.parts = [head, *[drop] * 20]
    scripted.pause_seconds = 0.1
    began = time.monotonic()
    assert http_subject.send(call).verdict == Verdict.UNKNOWN
    assert time.monotonic() - began < 1.0


def test_a_credential_that_fits_no_header_is_surely_not_sent_and_stands_in_no_message(
    provider: Provider, scripted: Scripted
) -> None:
    for subject in (SUBJECTS[0], SUBJECTS[1]):
        call = subject.call(provider, base_url=scripted.url, credential="sk_test_gehei\u00e9m")
        answer = subject.send(call)
        assert answer.verdict == Verdict.NOT_SENT
        assert "gehei" not in repr(answer)
        assert subject.connector.look_up(call).verdict == Verdict.UNREACHABLE
    assert scripted.taken == []


def test_an_answer_without_end_or_without_measure_is_unknown(
    provider: Provider, http_subject: Subject, scripted: Scripted
) -> None:
    call = http_subject.call(provider, base_url=scripted.url)
    scripted.parts = [b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"]
    assert http_subject.send(call).verdict == Verdict.UNKNOWN
    scripted.says(200, b" " * (MAX_ANSWER_BYTES + 1))
    assert http_subject.send(call).verdict == Verdict.UNKNOWN


def test_a_connection_that_the_provider_closed_meanwhile_costs_nothing(
    provider: Provider, http_subject: Subject
) -> None:
    assert http_subject.send(http_subject.call(provider)).verdict == Verdict.APPLIED
    provider.fault("unreachable", door=http_subject.door)
    provider.fault("ok")
    assert http_subject.send(http_subject.call(provider)).verdict == Verdict.APPLIED


def test_one_connector_serves_many_threads(provider: Provider, subject: Subject) -> None:
    calls = [subject.call(provider) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(subject.send, calls))
    assert {answer.verdict for answer in answers} == {Verdict.APPLIED}
    assert [len(subject.effects(provider, call)) for call in calls] == [1] * 8


def test_the_sdk_is_not_loaded_before_it_is_used() -> None:
    code = (
        "import os, sys, django; os.environ['DJANGO_SETTINGS_MODULE'] = 'agentops.settings';"
        "os.environ['AGENTOPS_DEMO'] = '1'; django.setup();"
        "import operations.connectors.registry; sys.exit('stripe' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
