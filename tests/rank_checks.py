"""What every rank of three checks of `join`, `Exchange` and `sum_gradients`, in one job.

Run by `tests/ranks/test_exchange.py` as `rank_checks.py FOLDER` with torchrun's environment; writes a JSON file of check -> "" or
traceback.
"""

import sys
import time
from enum import IntEnum
from pathlib import Path

import torch
import torch.distributed as dist

from checks import message, run_checks
from headrace.ranks import Alone, Exchange, GroupRanks, Traffic, gradient_bytes, join, machine, sum_gradients

RANKS = 3


class Kind(IntEnum):
    push = 0
    pull = 7
    rest = 255


class TooLarge(IntEnum):
    kind = 256


def check_who_is_there(ranks):
    assert isinstance(ranks, GroupRanks)
    assert (ranks.size, ranks.local_rank, list(ranks.machines)) == (RANKS, ranks.rank, [machine()] * RANKS)
    assert dist.get_backend() == "gloo"
    assert ranks.all_gather({"rank": ranks.rank}) == [{"rank": rank} for rank in range(RANKS)]
    assert ranks.broadcast(ranks.rank * 10) == 0
    assert ranks.broadcast(ranks.rank * 10, source=2) == 20
    ranks.barrier()


def check_counts_and_kinds(ranks):
    exchange = Exchange(ranks)
    assert (exchange.rank, exchange.size) == (ranks.rank, RANKS)
    mine = list(Kind)[ranks.rank]
    for size in (1, 1 << 40):
        kinds, counts = exchange.counts("how many", mine, [size * (10 * ranks.rank + other) for other in range(RANKS)])
        assert kinds == list(Kind)
        assert counts == [size * (10 * other + ranks.rank) for other in range(RANKS)]
    assert exchange.traffic == {"how many": Traffic(2 * 8 * (RANKS - 1), 2 * 8 * (RANKS - 1))}
    assert "kinds must be numbers from 0 to 255" in message(ValueError, exchange.counts, "how many", TooLarge.kind, [0] * RANKS)
    exchange.close()


def check_facts_that_one_rank_lacks_are_named(ranks):
    exchange, odd = Exchange(ranks), ranks.rank == 2
    lacking, more = ({"a": "1"}, {"a": "1", "b": "2"})
    for same, first, other in ((lacking if odd else more, "2", "none"), (more if odd else lacking, "none", "2")):
        wanted = f"ranks disagree on the b: rank 0 has {first}, rank 2 has {other}"
        assert message(ValueError, exchange.agree, same, problem=None, told={}) == wanted
    assert exchange.agree(more, problem=None, told={"n": ranks.rank}) == {"n": [0, 1, 2]}
    exchange.close()


def check_uneven_all_to_all(ranks):
    exchange = Exchange(ranks.group)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8):
        for width in ((), (3,), (2, 5), (0,)):
            rows = {}  # rank a sends a * b rows to rank b
            for sender in range(RANKS):
                generator = torch.Generator().manual_seed(sender)
                rows[sender] = (torch.randn(sender * 3, *width, generator=generator) * 9).to(dtype)
            sending = [ranks.rank * other for other in range(RANKS)]
            receiving = [other * ranks.rank for other in range(RANKS)]
            received = exchange.all_to_all("rows", rows[ranks.rank], sending=sending, receiving=receiving).wait()
            starts = [sender * sum(range(ranks.rank)) for sender in range(RANKS)]
            expected = [rows[s][starts[s] : starts[s] + s * ranks.rank] for s in range(RANKS)]
            assert received.dtype == dtype
            assert torch.equal(received, torch.cat(expected))
    per_row = sum(d * w for d in (4, 2, 8, 1, 1) for w in (1, 3, 10, 0))
    others = sum(ranks.rank * other for other in range(RANKS) if other != ranks.rank)
    assert exchange.traffic["rows"] == Traffic(others * per_row, others * per_row)
    exchange.close()


def check_all_gather(ranks):
    exchange = Exchange()
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        mine = torch.full((4, 3), ranks.rank).to(dtype)
        expected = torch.arange(RANKS).repeat_interleave(4).unsqueeze(1).expand(-1, 3).to(dtype)
        assert torch.equal(exchange.all_gather("sums", mine), expected)
    assert exchange.all_gather("nothing", torch.empty(0)).shape == (0,)
    size = (RANKS - 1) * 12 * (4 + 2 + 1)
    assert exchange.traffic == {"sums": Traffic(size, size), "nothing": Traffic()}
    exchange.close()


def check_exchanges_do_not_mix_with_the_trainer(ranks):
    exchange, other = Exchange(ranks), Exchange(ranks)
    tensor = torch.full((RANKS,), float(ranks.rank))
    under_way = [e.all_to_all("it", tensor, sending=[1] * RANKS, receiving=[1] * RANKS) for e in (exchange, other)]
    gradient = torch.ones(1)
    dist.all_reduce(gradient)
    assert gradient == RANKS
    for transfer in reversed(under_way):
        assert transfer.wait().tolist() == [0.0, 1.0, 2.0]
    exchange.close()
    other.close()


def check_gradients_have_the_bits_of_one_process(ranks):
    pair = dist.new_group([0, 2])
    groups = [ranks.group, *([pair] if ranks.rank != 1 else [])]
    for group in groups:
        exchange = Exchange(group)
        for batches in (1, 2, 3, 4, 7):
            for parameters, dtype in ((1001, torch.float32), (2, torch.float64), (0, torch.float32), (64, torch.bfloat16)):
                generator = torch.Generator().manual_seed(batches)
                gradients = torch.randn(batches, parameters, generator=generator)
                gradients = (gradients * 10.0 ** torch.randint(-4, 5, (batches, 1), generator=generator)).to(dtype)
                exchange.traffic.clear()
                total = sum_gradients(
                    list(gradients[exchange.rank :: exchange.size]),
                    batches=batches,
                    exchange=exchange,
                    like=torch.empty(parameters, dtype=dtype),
                )
                assert torch.equal(total, sum_gradients(list(gradients), batches=batches))
                formula = gradient_bytes(parameters, dtype.itemsize, batches, exchange.size, exchange.rank)
                assert dict(exchange.traffic) == formula, (exchange.traffic, formula)
        exchange.close()
        again = Exchange(group)
        assert torch.equal(again.all_gather("sums", torch.ones(2)), torch.ones(2 * again.size))
        again.close()


def check_wrong_settings_are_named(ranks):
    assert "one rank has no exchange" in message(ValueError, Exchange, Alone())
    assert "timeout must be a positive number" in message(ValueError, Exchange, ranks, timeout=0)


def check_an_absent_rank_is_named(ranks):
    exchange = Exchange(ranks, timeout=0.7, advice="Count the batches")
    if ranks.rank == 2:
        time.sleep(2.5)
        return
    said = message(TimeoutError, sum_gradients, [torch.ones(5)], batches=3, exchange=exchange)
    assert f"exchange 1 of rank {ranks.rank}: rank 2 did not come within 0.7 s. Count the batches. (" in said, said


def check_a_reported_error_is_named(ranks):
    exchange = Exchange(ranks, timeout=0.7)
    if ranks.rank == 1:
        exchange.report(OSError("the disk is gone"))
        time.sleep(2)
        return
    assert "rank 1 failed: the disk is gone" in message(RuntimeError, exchange.all_gather, "sums", torch.ones(2))


CHECKS = {name: check for name, check in list(globals().items()) if name.startswith("check_")}


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    with join("cpu", timeout=20) as ranks:
        run_checks(CHECKS, ranks, rank=ranks.rank, folder=folder, barrier=ranks.barrier)
    assert not dist.is_initialized()


if __name__ == "__main__":
    main()
