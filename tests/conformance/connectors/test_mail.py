"""Mail in its two ways: a folder that can be looked up, and a mail server that cannot."""

from email import message_from_bytes, policy
from pathlib import Path

import pytest

from operations.connectors.base import PastSendBy
from operations.states import Verdict
from tests.conformance.connectors.servers import MailServer
from tests.conformance.connectors.subjects import SUBJECTS
from tests.provider import Provider

MAIL = SUBJECTS[3]


def test_a_message_is_one_file_named_by_its_key(provider: Provider, settings) -> None:
    call = MAIL.call(provider)
    answer = MAIL.send(call)
    assert [path.name for path in settings.AGENTOPS_MAIL_DIR.iterdir()] == [f"{call.idempotency_key}.eml"]
    assert answer.provider_ref == call.idempotency_key


def test_a_message_says_what_the_record_says(provider: Provider, settings) -> None:
    call = MAIL.call(provider)
    MAIL.send(call)
    stored = (settings.AGENTOPS_MAIL_DIR / f"{call.idempotency_key}.eml").read_bytes()
    message = message_from_bytes(stored, policy=policy.default)
    assert message["To"] == call.params["to_address"]
    assert message["Subject"] == f"Your refund for order {call.params['order']}"
    assert message["Message-ID"] == f"<{call.idempotency_key}@agentops>"
    text = message.get_content()
    assert "€10.00" in text
    assert "re_1" in text
    assert call.params["to_name"] in text


def test_a_name_is_written_as_it_is_and_breaks_no_header(provider: Provider) -> None:
    call = MAIL.call(provider)
    params = {**call.params, "to_name": "Aoife O'Brien & Söhne <b>"}
    body = MAIL.connector.build(type(call)(**{**vars(call), "params": params})).body
    message = message_from_bytes(body, policy=policy.default)
    assert "Dear Aoife O'Brien & Söhne <b>," in message.get_content()
    assert set(message.keys()) >= {"To", "From", "Subject", "Date", "Message-ID"}


def test_a_folder_that_cannot_be_written_is_surely_not_sent(
    provider: Provider, settings, tmp_path: Path
) -> None:
    call = MAIL.call(provider)
    settings.AGENTOPS_MAIL_DIR = tmp_path / "file" / "mail"
    (tmp_path / "file").write_text("in the way")
    assert MAIL.send(call).verdict == Verdict.NOT_SENT
    assert MAIL.connector.look_up(call).verdict == Verdict.UNREACHABLE


@pytest.mark.parametrize("key", ["../outside", "a/b", "", "x" * 81])
def test_a_key_that_is_no_file_name_is_never_made_one(provider: Provider, settings, key: str) -> None:
    call = MAIL.call(provider, idempotency_key=key)
    with pytest.raises(ValueError, match="no file name"):
        MAIL.send(call)
    assert not settings.AGENTOPS_MAIL_DIR.exists()


def test_what_each_way_can_do_is_told_apart() -> None:
    assert MAIL.connector.abilities_at("file:").can_look_up
    assert not MAIL.connector.abilities_at("smtp://mail.example:25").can_look_up
    assert MAIL.connector.abilities == MAIL.connector.abilities_at("smtps://mail.example")


def test_a_mail_server_takes_the_exact_bytes(provider: Provider, mail_server: MailServer) -> None:
    call = MAIL.call(provider, base_url=mail_server.url)
    request = MAIL.connector.build(call)
    answer = MAIL.connector.send(call, request, lambda: None)
    assert (answer.verdict, mail_server.taken) == (Verdict.APPLIED, [request.body])
    assert MAIL.connector.look_up(call).verdict == Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ({"RCPT": "550 no such user"}, Verdict.REFUSED),
        ({"RCPT": "450 mailbox busy"}, Verdict.NOT_SENT),
        ({"MAIL": "552 too much"}, Verdict.REFUSED),
        ({"DATA": "451 later"}, Verdict.NOT_SENT),
        ({"RCPT": ""}, Verdict.UNKNOWN),
    ],
)
def test_a_mail_server_that_refuses_is_believed(
    provider: Provider, mail_server: MailServer, answers: dict[str, str], verdict: Verdict
) -> None:
    mail_server.answers = answers
    assert MAIL.send(MAIL.call(provider, base_url=mail_server.url)).verdict == verdict
    assert mail_server.taken == []


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("", Verdict.UNKNOWN),
        ("554 it is spam", Verdict.REFUSED),
        ("451 try again", Verdict.NOT_SENT),
        (
            "?#! taken",
            Verdict.UNKNOWN,
        ),  # a yes or a no, garbled on the way: sent again it may be a second mail
        ("354 go on", Verdict.UNKNOWN),
        ("999 what", Verdict.UNKNOWN),
    ],
)
def test_after_the_message_only_a_word_of_the_server_proves_anything(
    provider: Provider, mail_server: MailServer, said: str, verdict: Verdict
) -> None:
    mail_server.after_data = said
    assert MAIL.send(MAIL.call(provider, base_url=mail_server.url)).verdict == verdict


def test_a_refused_login_is_blocked(provider: Provider, mail_server: MailServer) -> None:
    mail_server.answers = {"AUTH": "535 wrong password"}
    answer = MAIL.send(MAIL.call(provider, base_url=mail_server.url, credential="agent:secret"))
    assert answer.verdict == Verdict.BLOCKED
    assert "secret" not in repr(answer)


@pytest.mark.parametrize("url", ["smtp://127.0.0.1:1", "smtp://nowhere.invalid"])
def test_a_mail_server_that_is_not_there_is_surely_not_sent(provider: Provider, url: str) -> None:
    assert MAIL.send(MAIL.call(provider, base_url=url)).verdict == Verdict.NOT_SENT


def test_a_mail_past_its_send_by_never_reaches_the_mail_server(
    provider: Provider, mail_server: MailServer
) -> None:
    def too_late() -> None:
        raise PastSendBy

    with pytest.raises(PastSendBy):
        MAIL.send(MAIL.call(provider, base_url=mail_server.url), too_late)
    assert mail_server.taken == []
