"""A rank of several: rank VICTIM kills itself in the second hop of a sample, the others say what they were told, and when.

Run by `test_split_sampler.py` as `topology_gone_child.py VICTIM`.
"""

import os
import signal
import sys
import time

import torch

from headrace.cluster.topology import SplitSampler
from headrace.ranks import join
from headrace.store import hash_owners
from topology_cases import awkward_graph, share_of

with join() as ranks:
    graph, owners = awkward_graph(), hash_owners(300, ranks.size)
    sampler = SplitSampler(*share_of(graph, owners, ranks.rank), owners, [5, 3])
    draw = sampler.share.draw

    def draw_or_die(groups, pool, *, hop, **how):
        if hop == 1 and ranks.rank == int(sys.argv[1]):
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(groups, pool, hop=hop, **how)

    sampler.share.draw = draw_or_die
    try:
        sampler.sample(torch.arange(20))
    except RuntimeError as error:
        print(f"{time.time():.3f} {error}", flush=True)
        time.sleep(3)  # rank 0 hosts the store, through which the others hear of it
    os._exit(0)
