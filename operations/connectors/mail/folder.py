"""Delivery into a folder, for the demo: one file a message, named by its key, so that a lost answer can be looked up."""

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from django.conf import settings

from operations.connectors.base import Abilities, Answer, Call
from operations.states import Verdict

ABILITIES = Abilities(
    honours_idempotency_keys=True,
    key_lifetime_seconds=365 * 24 * 3600,  # a file is never forgotten
    replays_errors=False,
    refuses_changed_body=True,
    can_look_up=True,
    look_up_lag_seconds=0,
    can_list=False,
)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


def is_meant(base_url: str) -> bool:
    return base_url == "file:"


def deliver(call: Call, body: bytes, before_first_byte: Callable[[], None]) -> Answer:
    """Put the message in its place whole, or not at all; the same message under its key is done already."""
    path = _path(call)
    before_first_byte()
    try:
        if path.exists():
            return _found(path, body)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, body)
    except OSError as error:
        return Answer(Verdict.NOT_SENT, code="folder_unwritable", detail=str(error))
    return _receipt(path, body)


def look_up(call: Call) -> Answer:
    path = _path(call)
    try:
        return _receipt(path, path.read_bytes())
    except FileNotFoundError:
        return Answer(Verdict.ABSENT, detail="There is no message under this key.")
    except OSError as error:
        return Answer(Verdict.UNREACHABLE, code="folder_unreadable", detail=str(error))


def _path(call: Call) -> Path:
    if not _NAME.fullmatch(call.idempotency_key):
        raise ValueError("an idempotency key that is no file name")
    place = Path(settings.AGENTOPS_MAIL_DIR) / ("trial" if call.is_trial else "")
    return place / f"{call.idempotency_key}.eml"


def _write_whole(path: Path, body: bytes) -> None:
    """Two senders of one key write the same bytes, so whichever renames last changes nothing."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _found(path: Path, body: bytes) -> Answer:
    stored = path.read_bytes()
    if stored != body:
        return Answer(
            Verdict.CONTRADICTION,
            provider_ref=path.stem,
            code="other_message",
            detail="The key has another message.",
        )
    return _receipt(path, stored)


def _receipt(path: Path, body: bytes) -> Answer:
    digest = hashlib.sha256(body).hexdigest()
    return Answer(Verdict.APPLIED, provider_ref=path.stem, receipt={"file": path.name, "sha256": digest})
