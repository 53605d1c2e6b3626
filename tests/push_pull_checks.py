"""What every rank checks of push-pull training, in one go, since starting processes costs more than all checks together.

Run by `cluster/test_push_pull.py` as `push_pull_checks.py FOLDER`, with torchrun's environment; writes a JSON file of
check -> "" or traceback. The truth is the plain recipe in one process, which each rank computes for itself.
"""

import copy
import itertools
import json
import random
import sys
import time
import traceback
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

import headrace as hr
from headrace.cluster import Grid, cut
from headrace.cluster.traffic import Block, pulled_by, structure_bytes
from headrace.loader import NeighborLoader
from headrace.nn import SAGEConv
from headrace.ranks import Exchange, join
from headrace.store import ColumnSlice
from headrace.train import NodeOptions, Trainer, Watcher
from headrace.train.fit import Setup
from headrace.train.nodes.node import make_model
from headrace.train.nodes.over_ranks.over_parts import SplitData
from headrace.train.nodes.over_ranks.push_pull import PushPullRecipe
from headrace.train.nodes.recipe import NodeRecipe

FEATURES = 37
TOLERANCE = {torch.float64: (1e-12, 1e-10), torch.float32: (1e-6, 1e-5)}  # of gradients, of weights after 20 steps


def data(dtype, *, labels=1):
    """A sparse graph: some nodes have no neighbor. 60 training nodes make 9 batches of 7, the last of 4."""
    graph = hr.generate.community(nodes=600, edges=900, classes=4, features=FEATURES, seed=5)
    graph = replace(graph, x=graph.x.to(dtype), splits={"train": graph.splits["train"][:60]})
    assert (graph.graph.degrees() == 0).any()
    return graph if labels == 1 else replace(graph, y=torch.nn.functional.one_hot(graph.y.long(), 4))


def options(model="sage", **more):
    usual = {
        "hidden": 16,
        "heads": 4,
        "fanout": (4, 3),
        "epochs": 7,
        "batch_size": 7,
        "accumulate": 4,
        "dropout": 0.5,
        "input_dropout": 0.3,
        "optimizer": "sgd",
        "lr": 0.05,
        "clip": 0.7,
        "class_weights": "balanced",
        "validate": "none",
        "threads": 1,
        "seed": 3,
        "parallel": "push_pull",
    }
    return NodeOptions(model=model, **{**usual, **more})


def exchange_of(members, size, opened):
    if len(members) == 1:
        return None
    group = None if len(members) == size else dist.new_group(list(members), use_local_synchronization=True)
    exchange = Exchange(group)
    opened.callback(exchange.close)
    return exchange


def push_pull(graph, model, how, ranks, opened):
    grid = Grid(ranks.rank, ranks.size, how.slices)
    recipe = PushPullRecipe(
        graph,
        model,
        how,
        features=ColumnSlice(graph.x, *grid.columns(FEATURES)),
        grid=grid,
        team=exchange_of(grid.members, ranks.size, opened),
        replicas=exchange_of(grid.replicas, ranks.size, opened),
        ranks=ranks,
        accumulate=how.accumulate,
        exchange=exchange_of(range(ranks.size), ranks.size, opened),
    )
    opened.callback(recipe.engine.close)
    return recipe


def over_parts(graph, model, how, ranks, opened):
    """The same, where each rank has its own rows of the graph alone."""
    split = SplitData.of(cut(graph, ranks.rank, parts=ranks.size, columns=True), how)
    exchange = exchange_of(range(ranks.size), ranks.size, opened)
    return split.recipe(model, Setup(how, None, None, ranks, how.accumulate, Watcher(), opened, exchange))


def trained(recipe, how, ranks=None, updates=20):
    """The gradients of the first update, and the weights after some more."""
    trainer = Trainer(recipe, how, None, Watcher(), ranks=ranks, exchange=recipe.exchange, accumulate=how.accumulate)
    first, step, count = {}, recipe.update.optimizer.step, 0

    def counted():
        nonlocal count
        if not count:
            first.update({name: p.grad.clone() for name, p in recipe.model.named_parameters()})
        count += 1
        step()

    recipe.update.optimizer.step = counted
    while count < updates:
        trainer.epoch()
    return first, recipe.model.state_dict()


def errors(found, wanted):
    """How far tensors are from what is wanted, each as a share of the largest number of all."""
    largest = max(float(tensor.abs().max()) for tensor in wanted.values())
    return {name: float((found[name] - tensor).abs().max()) / largest for name, tensor in wanted.items()}


def compare(ranks, how, *, dtype, build=None, labels=1, updates=20, make=push_pull):
    graph = data(dtype, labels=labels)
    torch.manual_seed(how.seed)
    model = (build or make_model)(replace(graph, x=graph.x.float()), how).to(dtype)
    plain = replace(how, parallel="auto", versions="flush", wire="fp32", slices=1)
    truth, rounding = None, (0.0, 0.0)
    if ranks.rank == 0:
        truth = trained(NodeRecipe(graph, copy.deepcopy(model), plain, accumulate=how.accumulate), plain, updates=updates)
        if dtype == torch.float32:
            wide, doubled = replace(graph, x=graph.x.double()), copy.deepcopy(model).double()
            exact = trained(NodeRecipe(wide, doubled, plain, accumulate=how.accumulate), plain, updates=updates)
            rounding = [2 * max(errors(*pair).values()) for pair in zip(truth, exact, strict=True)]
    with ExitStack() as opened:
        recipe = make(graph, model, how, ranks, opened)
        gradients, weights = trained(recipe, how, ranks, updates=updates)
        for name in recipe.engine.split.names:  # each rank has its own columns; those of further slices are many times the same
            every = ranks.all_gather(gradients[f"layers.0.{name}"])
            gradients[f"layers.0.{name}"] = sum(every) / how.slices
    problems = []
    for limit, noise, found, wanted in zip(TOLERANCE[dtype], rounding, (gradients, weights), truth or (), strict=False):
        # Two ways to round a sum differ by as much as each does from the sum itself: of GIN's gradients, by 1.7e-6.
        wrong = {name: error for name, error in errors(found, wanted).items() if not error <= max(limit, noise)}
        problems += [f"{how.model} {name}: {error:.2e} of the largest, at most {limit}" for name, error in wrong.items()]
    problems = ranks.broadcast(problems)  # rank 0 alone has the truth, and all must go on alike
    assert not problems, problems


class Delayed(NodeRecipe):
    """A sequential replay of a delay: gradients at an old version of the first layer's maps, applied to the newest."""

    def start(self, versions):
        layer = self.model.layers[0]
        split = layer.split()
        self.delayed = [layer.get_parameter(name) for name in (*split.names, *split.shared)]
        self.versions, self.history = versions, [[p.detach().clone() for p in self.delayed]]

    def gradients(self, batch, clock):
        updates = len(self.history) - 1
        newest = self.history[-1]
        self._put(self.history[self.versions.of_update(updates)])
        done = super().gradients(batch, clock)
        self._put(newest)
        return done

    def updated(self):
        self.history.append([p.detach().clone() for p in self.delayed])

    def _put(self, values):
        for parameter, value in zip(self.delayed, values, strict=True):
            parameter.data = value.clone()


def replayed(graph, model, how, versions, updates):
    recipe = Delayed(graph, model, replace(how, parallel="auto", versions="flush"), accumulate=how.accumulate)
    recipe.start(versions)
    trainer = Trainer(recipe, how, None, Watcher(), accumulate=how.accumulate)
    step = recipe.update.optimizer.step

    def stepped():
        step()
        recipe.updated()

    recipe.update.optimizer.step = stepped
    while len(recipe.history) <= updates:
        trainer.epoch()
    return recipe.model.state_dict()


class Sleepy:
    """Sleeps for random moments before every piece of work of an engine's thread, and of the caller's."""

    def __init__(self, recipe, seed):
        self.random = random.Random(seed)
        for owner, name in ((recipe.engine, "_forward"), (recipe.engine, "_backward"), (recipe, "loss"), (recipe, "close_step")):
            setattr(owner, name, self.slowed(getattr(owner, name)))

    def slowed(self, work):
        def sleepy(*args):
            time.sleep(self.random.random() * 0.004)
            return work(*args)

        return sleepy


def check_delays_are_a_replay_of_their_function(ranks):
    graph = data(torch.float64)
    for name, live, model in (("stash", 4, "sage"), ("stash(1)", 2, "gat"), ("double_buffer", 2, "gcn"), ("flush", 1, "gatv2")):
        how = options(model, versions=name, accumulate=3 * ranks.size if name == "double_buffer" else ranks.size, clip=0.0)
        torch.manual_seed(how.seed)
        built = make_model(replace(graph, x=graph.x.float()), how).double()
        weights = []
        for sleepy in (False, True):
            with ExitStack() as opened:
                recipe = push_pull(graph, copy.deepcopy(built), how, ranks, opened)
                if sleepy:
                    Sleepy(recipe, ranks.rank)
                weights.append(trained(recipe, how, ranks, updates=12)[1])
                assert recipe.engine.most_versions == live, (name, recipe.engine.most_versions)
        for name_, tensor in weights[0].items():
            assert torch.equal(tensor, weights[1][name_]), f"{name} {name_}: other bits when it sleeps"
        apart = errors(weights[0], replayed(graph, built, how, recipe.engine.versions, 12)) if ranks.rank == 0 else {}
        assert all(error <= 1e-10 for error in ranks.broadcast(apart).values()), (name, apart)


def check_bytes_are_those_of_the_formula(ranks):
    for model, make in itertools.product(("sage", "gcn", "gat", "gatv2"), (push_pull, over_parts)):
        graph, how = data(torch.float32), options(model, accumulate=ranks.size, epochs=1)
        with ExitStack() as opened:
            recipe = make(graph, make_model(graph, how), how, ranks, opened)
            trained(recipe, how, ranks, updates=1)
            loader = NeighborLoader(graph, how.fanouts, "train", batch_size=how.batch_size, shuffle=True, seed=how.seed)
            sent = {phase: traffic.sent for phase, traffic in recipe.engine.team.exchange.traffic.items()}
            everyone = ranks.all_gather(sum(sent.values()))
        blocks, expected = [Block(b.num_src, b.num_dst, len(b.indices)) for b in (batch.blocks[-1] for batch in loader)], 0
        for block in blocks:
            pushed = structure_bytes(block, id_size=4, degrees=model == "gcn") if make is over_parts else 0.0
            expected += pulled_by(recipe.engine.split, block, team=ranks.size, structure=pushed)
        if make is over_parts:  # ranks without a batch in the last round say so
            expected += 8 * (ranks.size - 1) * (-len(blocks) % ranks.size)
        assert sum(everyone) == expected, (model, make.__name__, sum(everyone), expected)


def check_sums_that_travel_in_bf16(ranks):
    """Half the bytes, near the same gradients, and the same bits twice."""
    graph, sent, results = data(torch.float32), {}, {}
    for number, wire in enumerate(("fp32", "bf16", "bf16")):
        how = options("gat", wire=wire, accumulate=ranks.size, clip=0.0)
        torch.manual_seed(how.seed)
        with ExitStack() as opened:
            recipe = push_pull(graph, make_model(graph, how), how, ranks, opened)
            results[number] = trained(recipe, how, ranks, updates=3)
            sent[wire] = sum(traffic.sent for traffic in recipe.engine.team.exchange.traffic.values())
    assert sent["fp32"] == 2 * sent["bf16"] > 0
    for name, gradient in results[1][0].items():
        assert torch.equal(gradient, results[2][0][name]), name
    rounded = errors(results[1][0], results[0][0])
    assert 1e-6 < max(rounded.values()) < 0.02, rounded


def check_a_split_graph(ranks):
    for model in ("sage", "gcn", "gin", "gat", "gatv2"):
        compare(ranks, options(model), dtype=torch.float64, make=over_parts)
    compare(ranks, options("sage"), dtype=torch.float32, make=over_parts)


def check_every_model(ranks):
    for dtype in (torch.float64, torch.float32):
        for model in ("sage", "gcn", "gin", "gat", "gatv2"):
            compare(ranks, options(model), dtype=dtype)


def check_norms_and_residuals(ranks):
    for model in ("sage", "gin", "gat", "gatv2"):
        compare(ranks, options(model, norm="layer", residual=True), dtype=torch.float64)
        compare(ranks, options(model, norm="batch", residual=True, hidden=FEATURES - 1), dtype=torch.float64)


def check_a_residual_of_the_columns_themselves(ranks):
    compare(ranks, options("sage", residual=True, hidden=FEATURES), dtype=torch.float64)


def check_sums_and_normalized_rows(ranks):
    def build(graph, how):
        model = make_model(graph, how)
        model.layers[0].conv = SAGEConv(FEATURES, how.hidden, aggr="sum", normalize=True)
        return model

    compare(ranks, options(), dtype=torch.float64, build=build)


def check_several_labels_of_a_node(ranks):
    compare(ranks, options(), dtype=torch.float64, labels=4)


def check_one_layer(ranks):
    compare(ranks, options(fanout=(5,)), dtype=torch.float64)


def check_more_batches_than_ranks_and_fewer(ranks):
    for accumulate in {ranks.size, 2 * ranks.size + 1}:
        compare(ranks, options(accumulate=accumulate), dtype=torch.float64)


def check_further_slices(ranks):
    for held in (n for n in range(2, ranks.size + 1) if ranks.size % n == 0):
        compare(ranks, options("gat", slices=held), dtype=torch.float64)


def main(folder):
    results = {}
    torch.set_num_threads(1)
    with join() as ranks:
        for name, check in list(globals().items()):
            if name.startswith("check_") and (len(sys.argv) == 2 or name in sys.argv[2:]):
                try:
                    check(ranks)
                    results[name] = ""
                except Exception:
                    results[name] = traceback.format_exc()
                    if not isinstance(sys.exc_info()[1], AssertionError):
                        break
                every = ranks.all_gather(results[name])
                if any(every):
                    print(name, *every, flush=True)
    (folder / f"{ranks.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
