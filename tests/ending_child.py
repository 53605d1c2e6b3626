"""Ends the interpreter, in each of several ways, while threads work for objects that nobody closed; prints the exit codes.

Each end is of a forked child, which saves importing everything again.
"""

import faulthandler
import json
import os
import signal
import sys
import tempfile
import time

import torch

import headrace as hr
from headrace.loader import LinkNeighborLoader, NeighborLoader
from headrace.pipeline import Pipeline, Stage
from headrace.pipeline.orders import beta
from headrace.ranks import Turns
from headrace.store import Partitioned

REPEATS = int(sys.argv[1])
DATA = hr.generate.community(nodes=20_000, edges=400_000, classes=3, features=32, seed=3)
X, IDS = torch.randn(50_000, 64), torch.randint(0, 50_000, (20_000,))


def gather():
    return hr.kernels.gather(X, IDS, threads=2)


def loader():
    iterator = iter(NeighborLoader(DATA, [10, 10], batch_size=256, num_workers=2, staleness=64))
    next(iterator)
    return iterator


def link_loader():
    iterator = iter(LinkNeighborLoader(DATA, [5], batch_size=1024, neg_sampling="binary", num_workers=2, staleness=64))
    next(iterator)
    return iterator


def pipeline():
    iterator = iter(Pipeline(range(10**9), [Stage("gather", lambda _: gather(), threads=3)], staleness=64))
    next(iterator)
    return iterator


def turns():
    working = Turns(ahead=4, name="a test", device=torch.device("cpu"))

    def work():
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            gather()

    return working, [working.submit(work) for _ in range(4)]


def partitions():
    folder = tempfile.mkdtemp(dir=sys.argv[2])
    Partitioned.create(folder + "/rows", 20_000, 16, partitions=16)
    store = Partitioned.open(folder + "/rows", capacity=4)
    walk = store.walk(beta(16, 4)).__enter__()
    steps = iter(walk)
    next(steps)
    return store, walk, steps


def plainly():
    pass


def by_exit():
    sys.exit(3)


def by_exception():
    raise ValueError("the user's")


def by_interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)


def everything():
    return [make() for make in SINGLE]


SINGLE = [loader, link_loader, pipeline, turns, partitions]
LIVE = [everything] if sys.argv[3:] == ["together"] else SINGLE
WAYS = [plainly, by_exit, by_exception, by_interrupt]


def status(pid):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(code)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


def each_in_a_child():
    """Yields in the children; the parent gets all exit codes."""
    codes = {}
    for make in LIVE:
        for way in WAYS:
            for _ in range(REPEATS):
                pid = os.fork()
                if pid == 0:
                    return make, way
                codes.setdefault(f"{make.__name__} {way.__name__}", []).append(status(pid))
    print(json.dumps(codes))
    return None


chosen = each_in_a_child()
if chosen is not None:
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    alive = chosen[0]()
    chosen[1]()
