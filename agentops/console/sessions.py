"""Sessions in the database, as Django has them; a cookie that no column can hold names none."""

from django.contrib.sessions.backends import db


class SessionStore(db.SessionStore):
    """A quoted cookie may carry any character: with NUL in it, even the page to sign in ended with an error."""

    def __init__(self, session_key: str | None = None) -> None:
        super().__init__(None if "\x00" in (session_key or "") else session_key)
