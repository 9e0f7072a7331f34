"""The process itself: ready, restarted, killed, crowded, and free of everything that is ours."""

import ast
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import stripe

import agentops.demo.provider


def test_one_line_says_that_it_is_ready_and_where(provider):
    assert provider.ready == (
        f"provider ready: control {provider.control_url} payments {provider.payments_url} shop {provider.shop_url}\n"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_whatever_is_on_its_way(own_provider, wait_for, number):
    provider = own_provider()
    order = provider.new_order()
    provider.fault("slow", seconds=30)
    with ThreadPoolExecutor(30) as pool:
        sent = [pool.submit(provider.refund, order, amount=1) for _ in range(30)]
        wait_for(lambda: provider.books()["calls"] == 30)
        assert provider.stop(number) < 2  # not the 30 s
        for each in sent:
            assert isinstance(each.exception(), stripe.APIConnectionError)
    assert provider.process.returncode == 0
    provider.close()
    provider.start()
    assert provider.refunds_of(order) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_books_survive_a_restart_and_the_keys_with_them(own_provider, number):
    provider = own_provider()
    order = provider.new_order()
    made = provider.refund(order, "key-kept")
    books, orders = provider.books(), provider.http.get("/_orders").json()
    provider.stop(number)
    provider.close()
    provider.start()
    assert (provider.books(), provider.http.get("/_orders").json()) == (books, orders)
    again = provider.refund(order, "key-kept")
    assert (again.id, again.last_response.headers["Idempotent-Replayed"]) == (made.id, "true")


def test_what_was_to_settle_settles_after_a_restart(own_provider, wait_for):
    provider = own_provider()
    order = provider.new_order()
    provider.fault("bounce_after", seconds=0.2)
    provider.refund(order)
    provider.stop(signal.SIGKILL)
    provider.close()
    provider.start()
    wait_for(lambda: provider.refunds_of(order)[0]["status"] == "failed")


def test_dozens_of_slow_calls_are_served_at_once(provider, order, wait_for):
    provider.fault("slow", seconds=1.5)
    before = provider.books()["calls"]
    began = time.monotonic()
    with ThreadPoolExecutor(60) as pool:
        sent = [pool.submit(provider.refund, order, amount=10) for _ in range(60)]
        wait_for(lambda: provider.books()["calls"] == before + 60)
        assert {each.result().status for each in sent} == {"succeeded"}
    assert time.monotonic() - began < 10  # one after the other they would take 90 s
    assert len(provider.refunds_of(order)) == 60


def test_connections_are_kept_and_answers_leave_at_once(provider):
    headers = b"GET /_faults HTTP/1.1\r\nHost: provider\r\n\r\n"
    address = ("127.0.0.1", int(provider.control_url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=2) as kept:
        began = time.monotonic()
        for _ in range(20):
            kept.sendall(headers)
            assert kept.recv(65536).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - began < 0.7  # a delayed acknowledgement alone would take 40 ms each


def test_a_port_that_is_taken_is_named_and_not_shared(provider, tmp_path):
    port = provider.payments_url.rpartition(":")[2]
    command = [
        sys.executable,
        "-m",
        "agentops.demo.provider",
        "--port=0",
        f"--payments-port={port}",
        "--shop-port=0",
    ]
    command += [f"--books={tmp_path / 'other.db'}", "--jwks=none"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=10)
    assert second.returncode == 1
    assert port in second.stderr
    assert second.stderr.count("\n") == 1


def test_books_that_cannot_be_opened_are_named(tmp_path):
    command = [
        sys.executable,
        "-m",
        "agentops.demo.provider",
        "--port=0",
        "--payments-port=0",
        "--shop-port=0",
    ]
    command += [f"--books={tmp_path / 'none' / 'books.db'}", "--jwks=none"]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=10)
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
    assert "books.db cannot be opened" in failed.stderr


def test_keys_that_died_are_swept_out_at_the_start(own_provider):
    provider = own_provider()
    order = provider.new_order()
    for key in ("key-old", "key-young"):
        provider.refund(order, key)
    provider.sql("UPDATE stored_answers SET created_at = created_at - 86401 WHERE key = 'key-old'")
    provider.stop()
    provider.close()
    provider.start()
    assert provider.sql("SELECT key FROM stored_answers") == [("key-young",)]


def test_a_body_that_is_too_large_or_has_no_length_is_refused(provider):
    answer = httpx.post(f"{provider.control_url}/_faults", content=b"x" * (1 << 20) + b"x")
    assert answer.status_code == 413
    chunked = httpx.post(f"{provider.control_url}/_faults", content=iter([b"{}"]))
    assert chunked.status_code == 411


def test_the_control_door_names_what_it_does_not_have(provider):
    assert provider.http.get("/_nothing").json()["error"]["code"] == "not_found"
    assert provider.http.delete("/_books").status_code == 404
    assert provider.http.post("/_faults", content=b"not json").status_code == 400


def test_no_thread_is_left_behind_by_closing_the_port(provider):
    status = Path(f"/proc/{provider.process.pid}/task")
    provider.fault("unreachable")
    provider.fault("ok")
    before = len(list(status.iterdir()))
    for _ in range(20):
        provider.fault("unreachable")
        provider.fault("ok")
    assert len(list(status.iterdir())) <= before + 1


def test_it_shares_no_code_with_the_rest():
    folder = Path(agentops.demo.provider.__file__).parent
    foreign = set()
    for module in folder.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
            foreign |= {
                name
                for name in names
                if not name.startswith("agentops.demo.provider")
                and name.split(".")[0] not in sys.stdlib_module_names
            }
    assert foreign == {"jwt"}
