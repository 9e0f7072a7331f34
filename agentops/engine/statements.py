"""The driver's own pool of connections, and how a statement's rows are read over it."""

import select
from typing import Any, cast

from django.db import connection as django_connection
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

type Connection = AsyncConnection[DictRow]
type Pool = AsyncConnectionPool[AsyncConnection[DictRow]]


async def _is_open(conn: Connection) -> None:
    """A session that PostgreSQL has closed has something to read: only then is it asked, so that no checkpoint pays for it."""
    socket = select.poll()
    socket.register(conn.fileno(), select.POLLIN)
    if socket.poll(0):
        await AsyncConnectionPool.check_connection(conn)


def pool_of(size: int) -> Pool:
    """An unopened pool on Django's own database; open it in the loop that uses it."""
    params = django_connection.get_connection_params()
    wanted = ("dbname", "user", "password", "host", "port", "options")
    kwargs = {name: params[name] for name in wanted if params.get(name)}
    kwargs |= {
        "autocommit": True,
        "prepare_threshold": 0,
        "row_factory": dict_row,
        "application_name": "agentops-driver",
    }
    return AsyncConnectionPool(
        kwargs=kwargs,
        min_size=min(2, size),
        max_size=size,
        open=False,
        check=_is_open,
    )


async def all_rows(conn: Connection, statement: str, **arguments: Any) -> list[DictRow]:
    cursor = await conn.execute(cast(Any, statement), arguments)
    return await cursor.fetchall()


async def one_row(conn: Connection, statement: str, **arguments: Any) -> DictRow | None:
    cursor = await conn.execute(cast(Any, statement), arguments)
    return await cursor.fetchone()
