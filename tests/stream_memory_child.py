"""Trains on batches from the middle of a stream on disk, and prints the most memory of its own that the process had."""

import json
import sys
from itertools import islice

import torch

import headrace as hr
from headrace.graph import open_dataset
from headrace.nn import TGN
from headrace.train.events.forward import Forward
from headrace.train.events.recipe import TemporalRecipe
from headrace.train.loop import Trainer
from headrace.train.watching.watch import Watcher


def own_memory():
    """RssAnon + RssShmem."""
    with open("/proc/self/status") as status:
        sizes = dict(line.split(":") for line in status)
    return sum(int(sizes[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))


def main(folder, count):
    before = own_memory()
    stream = hr.EventStream.of(open_dataset(folder))
    options = hr.train.TemporalOptions(epochs=1, batch_size=200, hidden=32, neighbors=10, threads=1)
    model = Forward(TGN(memory=32, time=32, out=32), None)
    recipe = TemporalRecipe(stream, stream.splits(), model, options, evaluates=False)
    trainer = Trainer(recipe, options, None, Watcher())
    first = recipe.num_batches(0) // 2
    most, events = own_memory(), 0
    batches = recipe.batches(0, first)
    for batch in islice(batches, count):
        recipe.update.begin(1e-3)
        events += recipe.step(batch, trainer.clock).seeds
        most = max(most, own_memory())
    batches.close()
    rows = sum(memory.rows.nbytes for memory in recipe.memories.values())
    edges = recipe.make.samplers[0].graph.num_edges
    recipe.close()
    print(json.dumps({"before": before, "most": most, "memory": rows, "events": events, "edges": edges, "all": len(stream)}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]))
