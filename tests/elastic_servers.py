"""Graph servers of elastic training in one process, and the plain computation that they must equal."""

import copy
from contextlib import ExitStack

import torch

import headrace as hr
from headrace import _native
from headrace.cluster import ParameterStore, ThreadExecutor
from headrace.cluster.elastic import Controller, Labels, Neighborhood, Patience, Server
from headrace.cluster.parts.own_edges import edge_positions, own_indptr
from headrace.cluster.parts.part import part_of
from headrace.cluster.parts.share import own_splits
from headrace.cluster.parts.whole import describe
from headrace.loader import WholeBatch
from headrace.nn import GNN
from headrace.nn.node_losses import node_loss
from headrace.store import hash_owners
from rank_threads import ThreadExchange, on_every_rank
from topology_cases import awkward_graph

FEATURES, CLASSES = 13, 4


def awkward_dataset(nodes=150, dtype=torch.float64, seed=0, edges=500):
    """Repeated edges, loops, a hub and isolated nodes; a third of the nodes train."""
    graph = awkward_graph(nodes, edges, hub=100, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, FEATURES, generator=draw, dtype=torch.float64).to(dtype)
    y, order = torch.randint(CLASSES, (nodes,), generator=draw), torch.randperm(nodes, generator=draw)
    return hr.Dataset(graph, x=x, y=y, splits={"train": order[: nodes // 3].sort().values})


def part_with(data, owners, number):
    """A part by any owners; `cut` has those of hashing."""
    ids, own = owners.ids_of(number), torch.zeros(data.num_nodes, dtype=torch.bool)
    own[ids] = True
    arrays = {"indptr": own_indptr(data.graph.indptr, ids), **own_splits(data, own), "x": data.x[ids], "y": data.y[ids]}
    positions = torch.cat([torch.empty(0, dtype=torch.int64), *edge_positions(data.graph.indptr, ids, arrays["indptr"])])
    arrays["indices"] = data.graph.indices[positions]
    return part_of(number, describe(data, owners, by="hash", columns=False), owners, arrays)


def model_of(kind, *, layers=3, dtype=torch.float64, **more):
    torch.manual_seed(1)
    usual = {"dropout": 0.5, "input_dropout": 0.3} | ({"inner_norm": "layer"} if kind == "gin" else {})
    return GNN(FEATURES, 8, CLASSES, layers=layers, conv=kind, **(usual | more)).to(dtype)


def key(epoch):
    return int(_native.stream_key(3, epoch, 0, _native.Purpose.step))


def expected(model, data, classes=None, epoch=0):
    """Loss and gradients of one pass of autograd over the whole graph."""
    model = copy.deepcopy(model)
    torch.manual_seed(key(epoch))
    seeds = data.splits["train"]
    loss = node_loss(model(WholeBatch(data, len(model.layers)))[seeds], data.y[seeds], classes)
    loss.backward()
    return float(loss.detach()), {name: parameter.grad for name, parameter in model.named_parameters()}


def predicted(model, data):
    with torch.no_grad():
        return copy.deepcopy(model).eval()(WholeBatch(data, len(model.layers)))


class Trained:
    """What a server came to: its sums, the rows it holds, its counts."""

    def __init__(self, server, flow, validate):
        self.server = server
        server.train(range(1), flow=flow)
        self.total = server.store.take()
        self.loss, self.weight, self.right = torch.stack([server.totals[0][i] for i in sorted(server.totals[0])]).sum(0).tolist()
        self.calls = server.controller.counts.calls
        self.at, self.rows, self.predicted = server.at, server.work.rows, None
        if validate:
            server.store.step(self.total)
            self.predicted = server.validate(0)
        self.traffic = {} if server.at.exchange is None else dict(server.at.exchange.traffic)


def train_one(model, data, owners, number, exchange, *, intervals, flow, classes=None, executor=None, **how):
    """One server's epoch. `how`: validate, observe of the controller, fusion."""
    part = part_with(data, owners, number)
    at = Neighborhood(part, intervals=intervals, exchange=exchange)
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    store = ParameterStore(weights, lambda weights, total: weights, intervals=at.own_intervals)
    seeds = part.splits["train"].long()
    labels = Labels(owners.locate(seeds)[1], data.y[seeds], classes)
    with ExitStack() as stack:
        executor = executor or stack.enter_context(ThreadExecutor(2))
        patience = Patience(floor=60.0)  # a busy machine is no reason for another call
        controller = stack.enter_context(Controller(executor, patience=patience, observe=how.get("observe")))
        server = Server(model, at, part.x, labels, store, controller, draws=key, fusion=how.get("fusion", True))
        try:
            return Trained(server, flow, how.get("validate", False))
        finally:
            server.close()


def train(model, data, *, servers=1, owners=None, flow="sync", intervals=7, **how):
    """An epoch of servers that are threads; their total gradients over their total weight, and each server's `Trained`."""
    owners = owners or hash_owners(data.num_nodes, servers)
    if servers == 1:
        done = [train_one(model, data, owners, 0, None, intervals=intervals, flow=flow, **how)]
    else:

        def work(ranks):
            return train_one(model, data, owners, ranks.rank, ThreadExchange(ranks), intervals=intervals, flow=flow, **how)

        done = on_every_rank(servers, work)
        for one in done:
            if isinstance(one, Exception):
                raise one
    weight = sum(one.weight for one in done)
    total = {name: sum(one.total[name] for one in done) / weight for name in done[0].total}
    return total, done


def distance(found, wanted):
    """The largest difference, relative to the largest of all gradients."""
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    return max(float((found[name].double() - gradient.double()).abs().max()) for name, gradient in wanted.items()) / largest
