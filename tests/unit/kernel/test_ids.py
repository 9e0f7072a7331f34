import threading
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentops.kernel import ids


def test_ids_of_one_process_never_go_backwards_even_in_a_burst_or_under_a_clock_set_back(monkeypatch):
    clock = iter([2_000, 2_000, 1_000, *[1_000] * 5_000])
    monkeypatch.setattr(ids.time, "time_ns", lambda: next(clock) * 1_000_000)
    made = [ids.uuid7() for _ in range(5_003)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_of_several_threads_are_all_different():
    made: list[UUID] = []
    threads = [
        threading.Thread(target=lambda: made.extend(ids.uuid7() for _ in range(500))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 4_000


def test_an_id_says_its_version_variant_and_time():
    import time

    made = ids.uuid7()
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert abs((made.int >> 80) - time.time() * 1_000) < 5_000


@given(st.integers(0, 2**128 - 1))
def test_what_is_shown_is_read_back_and_nothing_else_is(number):
    value = UUID(int=number)
    shown = ids.show("run", value)
    assert ids.parse("run", shown) == value
    assert ids.parse("op", shown) is None
    assert ids.parse("run", shown.upper()) is None
    assert ids.parse("run", f" {shown}") is None
    assert ids.parse("run", shown + "0") is None


@given(st.lists(st.integers(0, 2**128 - 1), min_size=2, max_size=2))
def test_shown_ids_are_in_the_order_of_the_ids(numbers):
    first, second = (UUID(int=number) for number in numbers)
    assert (ids.show("op", first) < ids.show("op", second)) == (first < second)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "run_",
        "run",
        "run_" + "z" * 26,
        "run_" + "i" * 26,
        "run_" + "0" * 25,
        "run__" + "0" * 25,
        "run_" + "٠" * 26,
    ],
)
def test_what_is_no_id_is_none(text):
    assert ids.parse("run", text) is None
