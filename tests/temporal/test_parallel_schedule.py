"""The schedule of i x j x k trainers: DistTGL's tables, without its padding and with what it forgets."""

import itertools

import pytest

import headrace as hr


def test_epoch_parallelism_has_the_table_of_the_paper():
    assert hr.temporal.schedule(1, 3, 1, 6).table().splitlines() == [
        "0: 0W  0   0   3W  3   3   .   .",
        "1: .   1W  1   1   4W  4   4   .",
        "2: .   .   2W  2   2   5W  5   5",
    ]


def test_memory_parallelism_begins_at_other_places_and_wraps():
    assert hr.temporal.schedule(1, 1, 2, 8).table().splitlines() == [
        "0: 0W  1W  2W  3W  4W  5W  6W  7W",
        "1: 4W  5W  6W  7W  0W  1W  2W  3W",
    ]


def test_the_rest_of_a_group_is_written_too():
    assert hr.temporal.schedule(2, 1, 1, 5).table().splitlines() == ["0: 0W  2W  4W", "1: 1W  3W  ."]


@pytest.mark.parametrize("shape", list(itertools.product((1, 2, 3), (1, 2, 3), (1, 2, 3), (3, 7, 12))))
def test_every_copy_reads_and_writes_every_batch_once_in_order_of_tickets(shape):
    i, j, k, batches = shape
    if max(j, k) > -(-batches // i):
        with pytest.raises(ValueError, match="above the"):
            hr.temporal.schedule(*shape)
        return
    schedule = hr.temporal.schedule(*shape)
    turns = [turn for n in range(schedule.iterations) for turn in schedule.turns(n) if turn is not None]
    for copy in range(k):
        firsts = [turn for turn in turns if turn.copy == copy and turn.reads]
        assert sorted(turn.batch for turn in firsts) == list(range(batches))
        tickets = sorted(itertools.chain.from_iterable(((t.ticket, "R"), (t.ticket + t.group, "W")) for t in firsts))
        assert [ticket for ticket, _ in tickets] == list(range(2 * batches))
        for batch in range(batches):
            stays = sorted(turn.stay for turn in turns if turn.copy == copy and turn.batch == batch)
            assert stays == list(range(j))
        by_position = {}
        for turn in firsts:
            by_position.setdefault(turn.position, []).append(turn)
        last_write = -1
        for position in sorted(by_position):  # all reads of a group, then all its writes, then the next group's reads
            reads = [turn.ticket for turn in by_position[position]]
            assert min(reads) == last_write + 1
            last_write = max(turn.ticket + turn.group for turn in by_position[position])
    for copy, iteration in itertools.product(range(k), range(schedule.iterations)):
        assert sum(t is not None and t.copy == copy and t.writes for t in schedule.turns(iteration)) <= i


def test_sweeps_make_at_least_the_epochs_asked_for():
    assert hr.temporal.schedule(1, 2, 2, 9).sweeps(10) == 3
