import jwt
import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from jwt.algorithms import OKPAlgorithm

from agentops.kernel.broker import broker
from agentops.tenancy import identity


def test_a_living_process_says_so_without_asking_anybody(django_assert_num_queries, db):
    with django_assert_num_queries(0):
        answer = Client().get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_ready_means_database_migrations_and_broker(db):
    answer = Client().get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ready",
        "checks": {"database": "ok", "migrations": "ok", "broker": "ok"},
    }
    assert answer["Cache-Control"] == "no-store"


def test_a_migration_that_is_not_applied_is_named(db):
    last = MigrationRecorder(connection).migration_qs.filter(app="runs").order_by("-name").first()
    last.delete()
    answer = Client().get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["status"] == "not_ready"
    assert f"runs.{last.name}" in answer.json()["checks"]["migrations"]
    assert "manage.py migrate" in answer.json()["checks"]["migrations"]


def test_a_broker_that_does_not_answer_is_named(db, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    broker.cache_clear()
    try:
        answer = Client().get("/readyz")
    finally:
        broker.cache_clear()
    assert answer.status_code == 503
    assert answer.json()["checks"]["database"] == "ok"
    assert "REDIS_URL" in answer.json()["checks"]["broker"]


def test_a_database_that_does_not_answer_is_named(away):
    with away():
        answer = Client().get("/readyz")
        alive = Client().get("/healthz")
    assert answer.status_code == 503
    assert "DATABASE_URL" in answer.json()["checks"]["database"]
    assert answer.json()["checks"]["migrations"] != "ok"
    assert alive.status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/.well-known/jwks.json"])
def test_the_surroundings_only_read(db, path):
    assert Client().head(path).status_code == 200
    assert Client().post(path).status_code == 405


def test_what_we_sign_is_verified_with_the_published_key():
    answer = Client().get("/.well-known/jwks.json")
    token = identity.sign(audience="shop", tenant="acme", subject="customer:C-1", agent="a", scope="orders")
    published = {key["kid"]: key for key in answer.json()["keys"]}
    key = OKPAlgorithm.from_jwk(published[jwt.get_unverified_header(token)["kid"]])
    claims = jwt.decode(token, key, algorithms=["EdDSA"], audience="shop")
    assert claims["sub"] == "customer:C-1"
    assert "d" not in answer.json()["keys"][0]
    assert answer["Cache-Control"] == "public, max-age=300"
