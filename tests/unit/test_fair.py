"""Whose turn it is: rounds over tenants by weight, turns that are cut short go on, keys and limits hold."""

from uuid import UUID

from runs.fair import Candidate, Queue, share


def run(number: int, **more) -> Candidate:
    return Candidate(UUID(int=number), **more)


def queue(tenant: int, number: int, *, weight: int = 1, free: int = 100, deficit: int = 0) -> Queue:
    return Queue(tenant, weight, deficit, free, [run(tenant * 1_000 + place) for place in range(number)])


def given(queues: list[Queue], want: int) -> list[int]:
    return [chosen.int // 1_000 for chosen in share(queues, want).chosen]


def test_tenants_are_served_in_rounds_whatever_the_length_of_their_queues():
    assert given([queue(1, 900), queue(2, 2), queue(3, 900)], 8) == [1, 2, 3, 1, 2, 3, 1, 3]


def test_a_tenant_gets_as_many_in_a_round_as_it_weighs():
    assert given([queue(1, 9, weight=3), queue(2, 9)], 8) == [1, 1, 1, 2, 1, 1, 1, 2]


def test_a_turn_that_was_cut_short_goes_on_at_the_next_claim():
    first, second = queue(1, 9, weight=3), queue(2, 9)
    assert given([first, second], 2) == [1, 1]
    assert (first.deficit, first.served, second.deficit, second.served) == (1, False, 0, False)
    rest = queue(1, 7, weight=3, deficit=first.deficit)
    assert given([rest, queue(2, 9)], 2) == [1, 2]
    assert (rest.deficit, rest.served) == (0, True)


def test_what_a_tenant_does_not_use_up_is_not_kept_for_it():
    short = queue(1, 1, weight=5)
    given([short, queue(2, 9)], 9)
    assert (short.deficit, short.served) == (0, True)


def test_nobody_gets_more_than_its_own_limit_leaves():
    assert given([queue(1, 9, free=2), queue(2, 9, free=-1)], 16) == [1, 1]


def test_runs_under_one_key_come_as_its_limit_allows_and_the_others_step_aside():
    ready = [
        run(1, key="a"),
        run(2, key="a"),
        run(3),
        run(4, key="b", limit=2, held=1),
        run(5, key="b", limit=2, held=1),
    ]
    shares = share([Queue(1, 1, 0, 100, ready)], 16)
    assert [each.int for each in shares.chosen] == [1, 3, 4]
    assert [each.int for each in shares.blocked] == [2, 5]
