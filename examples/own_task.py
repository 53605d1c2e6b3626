"""A task of your own in Headrace's loop: predict a number for every node, judged by an error that should be small.

Stop it with Ctrl-C and run it again with --resume; run it by `torchrun --nproc-per-node 2 examples/own_task.py`.
"""

import sys

import headrace as hr


class Regression(hr.train.Recipe):
    measures = (hr.train.Measure("rmse", better="lower"),)

    def __init__(self, data, target, setup):
        self.data, self.target, ranks = data, target, setup.ranks
        self.model = hr.nn.GNN(data.num_features, 32, 1, layers=2, dropout=0.2)
        shard = hr.loader.Shard(ranks.rank, ranks.size, tail="empty", accumulate=setup.accumulate)
        sampled = {"batch_size": 64, "shuffle": True, "seed": setup.options.seed, "threads": setup.options.threads}
        self.loader = hr.loader.NeighborLoader(data, [10, 5], input_nodes="train", shard=shard, **sampled)
        self.smooth = None  # state of the task: an average over validations

    def loss(self, batch, clock):
        with clock("forward", batch.index):
            error = self.model(batch).squeeze(1) - self.target[batch.n_id[: batch.batch_size]]
        return hr.train.Step(error.square().mean(), batch.batch_size)

    def validate(self, progress):
        rmse = self.rmse("val", progress)
        self.smooth = rmse if self.smooth is None else 0.5 * self.smooth + 0.5 * rmse
        return {"rmse": rmse, "smooth": self.smooth}

    def test(self, progress):
        return {"test": {"rmse": self.rmse("test", progress)}}

    def rmse(self, split, progress):
        nodes = self.data.splits[split]
        rows = hr.train.infer(self.model, self.data, nodes, progress=progress).squeeze(1)
        return float((rows - self.target[nodes]).square().mean().sqrt())

    def state_dict(self):
        return {"smooth": self.smooth}

    def load_state_dict(self, state):
        self.smooth = state["smooth"]


def main(out=None, resume=False, **more):
    data = hr.generate.community(nodes=2000, edges=20000, classes=4, features=16, seed=0)
    options = hr.train.RunOptions(**{"epochs": 5, "lr": 0.01, "accumulate": 2, "threads": 1, **more})
    target = data.y.float() - data.y.float().mean()
    ends, recipe = hr.train.fit(lambda setup: Regression(data, target, setup), options, task="regression", out=out, resume=resume)
    return ends[-1]["test_rmse"], recipe


if __name__ == "__main__":
    rmse, _ = main(*(name for name in sys.argv[1:] if name != "--resume"), resume="--resume" in sys.argv)
    print(f"root mean square error on test nodes: {rmse:.3f}")
