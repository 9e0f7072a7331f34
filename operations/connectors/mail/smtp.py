"""Delivery over SMTP through Django's backend: at most once if nothing is lost, and nothing can be looked up."""

import smtplib
from collections.abc import Callable
from email import message_from_bytes
from email.utils import parseaddr
from urllib.parse import urlsplit

from django.core.mail.backends.smtp import EmailBackend

from operations.connectors.base import NOTHING, Answer, Call
from operations.connectors.wire import LOOPBACK
from operations.states import Verdict

ABILITIES = NOTHING


def deliver(call: Call, body: bytes, before_first_byte: Callable[[], None]) -> Answer:
    """Hand the exact bytes to the mail server. Only a whole refusal by the server is proof that nothing was sent."""
    headers = message_from_bytes(body)
    sender, recipient = parseaddr(headers["From"])[1], parseaddr(headers["To"])[1]
    backend = _backend(call)
    try:
        try:
            backend.open()
        except smtplib.SMTPAuthenticationError as error:
            return Answer(
                Verdict.BLOCKED, code="credential_refused", detail=_said(error.smtp_code, error.smtp_error)
            )
        except (smtplib.SMTPException, OSError) as error:
            return Answer(Verdict.NOT_SENT, code="unreachable", detail=str(error))
        before_first_byte()
        return _handed_over(backend.connection, sender, recipient, body, str(headers["Message-ID"]))
    finally:
        backend.close()


def look_up(call: Call) -> Answer:
    return Answer(
        Verdict.UNKNOWN, code="cannot_be_looked_up", detail="A mail server tells nothing afterwards."
    )


def _handed_over(
    connection: smtplib.SMTP | None, sender: str, recipient: str, body: bytes, reference: str
) -> Answer:
    assert connection is not None  # opened above
    try:
        connection.sendmail(sender, [recipient], body)
    except smtplib.SMTPRecipientsRefused as error:
        return _refused(*error.recipients[recipient])
    except smtplib.SMTPResponseException as error:
        return _refused(error.smtp_code, error.smtp_error)
    except (smtplib.SMTPException, OSError) as error:
        return Answer(Verdict.UNKNOWN, code="no_answer", detail=str(error))
    return Answer(Verdict.APPLIED, provider_ref=reference, receipt={"message_id": reference})


def _refused(code: int, said: bytes | str) -> Answer:
    """4xx is "not now", 5xx is "no"; any other word, or none that can be read, proves nothing."""
    verdict = {4: Verdict.NOT_SENT, 5: Verdict.REFUSED}.get(code // 100, Verdict.UNKNOWN)
    return Answer(verdict, code=f"smtp_{code}", detail=_said(code, said))


def _said(code: int, said: bytes | str) -> str:
    return f"{code} {said.decode(errors='replace') if isinstance(said, bytes) else said}"


def _backend(call: Call) -> EmailBackend:
    """`smtps://host` speaks TLS from the start, `smtp://host` by STARTTLS, and plainly only on this machine."""
    parts = urlsplit(call.base_url)
    username, _, password = call.credential.partition(":")
    is_tls = parts.scheme == "smtps"
    return EmailBackend(
        alias="agentops",
        host=parts.hostname,
        port=parts.port,
        username=username or None,
        password=password or None,
        use_ssl=is_tls,
        use_tls=not is_tls and parts.hostname not in LOOPBACK,
        timeout=call.timeout_seconds / 4,
    )
