"""Tries a person's own DATABASE_URL and REDIS_URL and says in one sentence what is wrong with them.

A program of its own, because the supervisor imports no client library.
"""

import os
import sys

import psycopg
import redis

_SECONDS = 5


def main() -> int:
    database_url, redis_url = os.environ.get("DATABASE_URL"), os.environ.get("REDIS_URL")
    if database_url and (fault := _database_fault(database_url)):
        print(
            f"DATABASE_URL does not work ({fault}): correct it, or unset it and a PostgreSQL is started for you."
        )
        return 1
    if redis_url and (fault := _redis_fault(redis_url)):
        print(f"REDIS_URL does not work ({fault}): correct it, or unset it and a Valkey is started for you.")
        return 1
    return 0


def _database_fault(url: str) -> str | None:
    if not url.startswith(("postgresql://", "postgres://")):
        return "it must look like postgresql://user:password@host:5432/name"
    try:
        with psycopg.connect(url, connect_timeout=_SECONDS) as connection:
            return None if connection.info.server_version >= 180000 else "it is older than PostgreSQL 18"
    except psycopg.Error as error:
        return " ".join(str(error).split())


def _redis_fault(url: str) -> str | None:
    try:
        redis.Redis.from_url(url, socket_connect_timeout=_SECONDS, socket_timeout=_SECONDS).ping()
    except (redis.RedisError, ValueError) as error:
        return " ".join(str(error).split())
    return None


if __name__ == "__main__":
    sys.exit(main())
