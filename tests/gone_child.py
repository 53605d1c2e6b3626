"""A rank of several: rank VICTIM kills itself between two collectives, the others say what they were told, and when.

Run by `test_gone.py` as `gone_child.py KIND VICTIM`.
"""

import os
import signal
import sys
import time

import torch

from headrace.ranks import Exchange, join
from headrace.store import Remote, hash_owners


def exchanged(ranks):
    exchange = Exchange(ranks)
    return lambda: exchange.all_gather("a phase", torch.ones(3))


def gathered(ranks):
    store = Remote(torch.zeros(30, 2), hash_owners(30, ranks.size))
    return lambda: store.gather(torch.arange(30))


with join() as ranks:
    call = {"ranks": lambda ranks: lambda: ranks.all_gather(1), "exchange": exchanged, "remote": gathered}[sys.argv[1]](ranks)
    call()
    if ranks.rank == int(sys.argv[2]):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        call()
    except RuntimeError as error:
        print(f"{time.time():.3f} {error}", flush=True)
        time.sleep(3)  # rank 0 hosts the store, through which the others hear of it
    os._exit(0)
