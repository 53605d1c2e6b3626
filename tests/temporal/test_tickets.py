"""Tickets: work in the order of numbers, over threads and processes; memory read and written off the trainer's path."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest
import torch

import headrace as hr
from headrace.ranks import RankGoneError
from headrace.temporal import Copies, NodeMemory
from headrace.temporal.post import Post
from headrace.temporal.tickets import Tickets
from headrace.train.events.event import _tgn
from headrace.train.events.forward import Forward
from headrace.train.events.recipe import TemporalRecipe
from headrace.train.loop import Trainer
from headrace.train.watching.watch import Watcher
from rank_threads import ThreadExchange, on_every_rank


def test_work_is_done_in_the_order_of_tickets():
    tickets, seen = Tickets("a test"), []
    futures = [tickets.submit(number, lambda number=number: seen.append(number) or number) for number in (3, 1, 0, 2)]
    assert sorted(future.result(10) for future in futures) == [0, 1, 2, 3]
    assert seen == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="ticket 2 of a test was served or given out already: the next is 4"):
        tickets.submit(2, lambda: None)
    tickets.begin(7)
    assert tickets.submit(7, lambda: "again").result(10) == "again"
    tickets.close()
    with pytest.raises(ValueError, match="a test is closed"):
        tickets.submit(8, lambda: None)


def test_what_waits_is_dropped_by_another_count_and_by_the_end():
    tickets = Tickets("a test")
    late = tickets.submit(5, lambda: None)
    tickets.begin(0)
    assert late.cancelled()
    later = tickets.submit(1, lambda: None)
    tickets.close()
    assert later.cancelled()


def test_after_a_failure_the_rest_is_refused():
    tickets = Tickets("a test")
    second = tickets.submit(1, lambda: 1)
    first = tickets.submit(0, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        first.result(10)
    with pytest.raises(RuntimeError, match="a test failed: integer division"):
        second.result(10)
    with pytest.raises(RuntimeError, match="a test failed earlier and cannot go on: integer division"):
        tickets.submit(2, lambda: 1)
    tickets.begin(0)
    assert tickets.submit(0, lambda: "well").result(10) == "well"
    tickets.close()


def test_memory_settles_when_its_writes_are_done_though_reads_wait():
    memory = NodeMemory(4, memory=1, mail=1)
    ahead = memory.read(3, 2, [torch.arange(4)])  # waits for a write that is still to come
    memory.read(0, 0, [torch.arange(2)])
    memory.write(1, 0, torch.tensor([2]), torch.ones(1, 2))
    memory.settle()
    assert memory.rows[2].tolist() == [1.0, 1.0]
    assert not ahead.done()
    memory.close()
    assert ahead.cancelled()


def copies(ranks, *, i=1, j=1, k=1, batches=6, nodes=5, machines=None):
    ranks.machines = machines or ["one"] * ranks.size
    schedule = hr.temporal.schedule(i, j, k, batches)
    return Copies(schedule, nodes, memory=1, mail=1, ranks=ranks, exchange=ThreadExchange(ranks))


@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 3, 1), (2, 2, 1), (4, 1, 1)])
def test_ranks_hand_tickets_on_in_one_order(shape):
    """Every rank submits what it has at once, the latest first; what is done has the order of tickets all the same."""
    i, j, _ = shape
    done = []

    def work(ranks):
        with_others = copies(ranks, i=i, j=j, batches=12)
        memory, schedule = with_others.memories[0], with_others.schedule
        for sweep in range(3):
            base = sweep * 24
            with_others.begin(lambda _, base=base: base)
            mine = [n for n in range(24) if with_others.owners[schedule.holder(0, n).trainer] == ranks.rank]
            for number in reversed(mine):
                memory.tickets.submit(base + number, lambda number=base + number: done.append(number))
            deadline = time.monotonic() + 20
            while len(done) < base + 24 and time.monotonic() < deadline:
                time.sleep(0.001)
            ranks.barrier()
        with_others.close()

    assert on_every_rank(i * j, work) == [None] * (i * j)
    assert done == list(range(72))


def test_rows_are_one_memory_for_the_ranks_of_a_machine_and_gathered_for_checkpoints():
    def work(ranks):
        made = copies(ranks, j=1, k=4, nodes=3, machines=["a", "a", "b", "b"])
        here = {0: {0, 1}, 1: {2, 3}}[ranks.rank // 2]
        assert set(made.rows) == here
        assert set(made.memories) == {ranks.rank}
        own = made.memories[ranks.rank].rows
        own.fill_(ranks.rank + 1.0)
        ranks.barrier()
        seen = {copy: rows[0, 0].item() for copy, rows in made.rows.items()}
        rows, held = made.collected({(ranks.rank, 0): torch.full((ranks.rank, 2), 7.0), (ranks.rank, 1): torch.ones(1, 1)})
        own.zero_()  # what was collected stays
        ranks.barrier()
        made.load([torch.full((3, 2), 10.0 * copy) for copy in range(4)])
        loaded = {copy: rows[2, 1].item() for copy, rows in made.rows.items()}
        ranks.barrier()
        made.close()
        return seen, [part.unique().tolist() for part in rows], {name: tuple(part.shape) for name, part in held.items()}, loaded

    results = on_every_rank(4, work)
    assert [seen for seen, *_ in results] == [{0: 1.0, 1: 2.0}] * 2 + [{2: 3.0, 3: 4.0}] * 2
    assert results[0][1] == [[1.0], [2.0], [3.0], [4.0]]
    assert results[0][2] == {(rank, stay): ((rank, 2), (1, 1))[stay] for rank in range(4) for stay in range(2)}
    assert all(result[1:3] == ([], {}) for result in results[1:])
    assert [loaded for *_, loaded in results] == [{0: 0.0, 1: 10.0}] * 2 + [{2: 20.0, 3: 30.0}] * 2


def test_a_message_without_the_key_is_not_taken():
    def work(ranks):
        post = Post(ranks)
        turns = []
        post.start({0: SimpleNamespace(turn=lambda *what: turns.append(what))})
        ranks.barrier()
        if ranks.rank == 0:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
                for message in (b"x", b"", bytes(16 + 24), bytes(300)):
                    stranger.sendto(message, post._addresses[1])
            post.send(1, 0, 1, 5)
        deadline = time.monotonic() + 10
        while ranks.rank == 1 and not turns and time.monotonic() < deadline:
            time.sleep(0.001)
        ranks.barrier()
        post.close()
        return turns

    assert on_every_rank(2, work) == [[], [(1, 5)]]


def test_a_turn_for_a_rank_that_is_gone_names_both():
    def work(ranks):
        post = Post(ranks)
        post.start({})
        ranks.barrier()
        if ranks.rank == 1:
            post.close()
        ranks.barrier()
        if ranks.rank == 0:
            with pytest.raises(RankGoneError, match="rank 1 is gone, whose ticket 9 of node memory 3 would be next"):
                post.send(1, 3, 1, 9)
            post.close()

    assert on_every_rank(2, work) == [None, None]


def stream(events=1200, nodes=60):
    return hr.EventStream.of(hr.generate.events(nodes=nodes, events=events, new=0.02, seed=5))


def recipe_of(data, **more):
    options = hr.train.TemporalOptions(**({"threads": 1, "staleness": 3, "dropout": 0.0, "epochs": 1} | more))
    model = Forward(_tgn(options, data, 0), None)
    return TemporalRecipe(data, data.splits(), model, options, evaluates=False, saves=False), options


def test_a_batch_goes_on_while_its_memory_is_written_and_the_next_is_read():
    """Each write waits until attention is done, each read until the batch before has updated the weights: nobody waits for them."""
    recipe, options = recipe_of(stream(), batch_size=100, hidden=8, heads=1)
    store, score, batches = recipe.memories[0].store, recipe.model.tgn.score, 8
    attended, updated = ([threading.Event() for _ in range(batches + 1)] for _ in range(2))
    waited, count = [], {"read": 0, "write": 0, "score": 0, "update": 0}
    gather, put = store.gather, store.put_

    def after(events, kind, work, offset):
        def done(*arguments, **more):
            number = count[kind] - offset
            count[kind] += 1
            if number >= 0:
                waited.append(events[number].wait(20))
            return work(*arguments, **more)

        return done

    def telling(events, kind, work):
        def done(*arguments, **more):
            result = work(*arguments, **more)
            events[count[kind]].set()
            count[kind] += 1
            return result

        return done

    store.gather, store.put_ = after(updated, "read", gather, 1), after(attended, "write", put, 0)
    recipe.model.tgn.score = telling(attended, "score", score)
    trainer = Trainer(recipe, options, None, Watcher())
    recipe.update.optimizer.step = telling(updated, "update", recipe.update.optimizer.step)
    assert recipe.schedule.batches == batches + 1
    trainer.epoch()
    recipe.copies.settle()
    recipe.close()
    assert count == dict.fromkeys(count, batches + 1)
    assert waited == [True] * (2 * batches + 1)


class Iterations(Watcher):
    """Seconds of iterations with slow memory and with quick one, in turns."""

    def __init__(self, turn=8):
        self.turn, self.steps, self.begun = turn, 0, time.perf_counter()
        self.slow, self.seconds = False, {False: [], True: []}

    def step(self, event, clock):
        now = time.perf_counter()
        if self.steps % self.turn > 2:  # those before began while the other kind was under way
            self.seconds[self.slow].append(now - self.begun)
        self.begun, self.steps = now, self.steps + 1
        self.slow = self.steps // self.turn % 2 == 1


@pytest.mark.slow
def test_slow_reads_and_writes_are_off_the_critical_path():
    """2 ms of sleep in each: an iteration whose attention and backward pass take 6 ms or more is longer by less than 1 ms."""
    recipe, options = recipe_of(stream(12_000, 400), batch_size=200, hidden=96)
    watcher = Iterations()
    store, slept = recipe.memories[0].store, []
    gather, put = store.gather, store.put_

    def slowly(work):
        def done(*arguments, **more):
            if watcher.slow:
                time.sleep(0.002)
                slept.append(threading.current_thread().name)
            return work(*arguments, **more)

        return done

    embed, begun = recipe.model.embed, []

    def attended(*arguments, **more):
        begun.append(time.perf_counter())
        return embed(*arguments, **more)

    recipe.model.embed = attended
    store.gather, store.put_ = slowly(gather), slowly(put)
    trainer = Trainer(recipe, options, None, watcher)
    step, after = recipe.update.optimizer.step, []
    recipe.update.optimizer.step = lambda: (after.append(time.perf_counter() - begun[-1]), step())
    for _ in range(3):
        trainer.epoch()
    recipe.close()
    assert set(slept) == {"headrace node memory 0"}
    typical = {slow: sorted(seconds)[len(seconds) // 4] for slow, seconds in watcher.seconds.items()}
    assert sorted(after)[len(after) // 4] >= 0.006  # of attention and the backward pass
    assert typical[True] - typical[False] < 0.001
