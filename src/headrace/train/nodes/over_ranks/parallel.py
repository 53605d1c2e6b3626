"""How ranks train together: each batch by one rank with all columns of its features, or the first layer by all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headrace.cluster import Grid
from headrace.cluster.traffic import Block, fetched, pulled_by, structure_bytes
from headrace.graph import Dataset, Graph
from headrace.loader import NeighborLoader
from headrace.nn import SplitError
from headrace.ranks import Exchange
from headrace.store import ColumnSlice, Remote, access_probability, expected_hit_rate, hash_owners, once_per_machine
from headrace.store.tiers.hot import order_of
from headrace.train.fit import Setup
from headrace.train.interrupt import Stopped
from headrace.train.nodes.options import NodeOptions
from headrace.train.nodes.over_ranks.push_pull import PushPullRecipe
from headrace.train.nodes.recipe import NodeRecipe, rows_on

_TRIED = 4  # batches that are drawn to see how large they are


def over_ranks(data: Dataset, model: nn.Module, setup: Setup) -> NodeRecipe:
    """The recipe of a run in memory, by what `parallel` says; one rank alone trains as usual."""
    options: NodeOptions = setup.options
    parallel, reason = chosen(data, model, options, setup.ranks.size)
    if reason:
        setup.watcher.note(reason)
    recipe = _by_columns(data, model, setup) if parallel == "push_pull" else _by_batches(data, model, setup)
    if setup.ranks.size > 1:
        setup.watcher.note(f"{setup.ranks.size} ranks, {setup.accumulate} batches per step; features: {recipe.placed}")
    return recipe


def chosen(data: Dataset, model: nn.Module, options: NodeOptions, ranks: int) -> tuple[str, str]:
    """`parallel`, with "auto" decided; and a sentence that says why, where bytes decided."""
    if options.parallel != "auto":
        return options.parallel, ""
    if (options.versions, options.wire, options.slices) != ("flush", "fp32", 1):
        return "push_pull", ""  # which alone has these
    spread = options.share == "ranks" or options.topology == "split"
    if ranks == 1 or not spread or data.x is None or options.full_batch:
        return "data", ""
    return cheaper(data, model, options, ranks)


def cheaper(data: Dataset, model: nn.Module, options: NodeOptions, ranks: int) -> tuple[str, str]:
    """Which of the two sends fewer bytes, and a sentence that says so."""
    layers = getattr(model, "layers", None)
    try:
        split = layers[0].split()  # type: ignore[index]
        grid = Grid(0, ranks, options.slices)
        grid.columns(data.num_features)
    except (SplitError, AttributeError, TypeError, IndexError) as error:
        return "data", f"parallel data: the first layer cannot be computed by columns ({error})"
    except ValueError as error:
        return "data", f"parallel data: {error}"
    assert data.x is not None
    block = mean_block(data, options)
    rows = fetched(block, ranks=ranks, features=data.num_features, itemsize=data.x.element_size(), hit_rate=hit_rate(data, options))
    degrees = any(getattr(module, "wants_degree", False) for module in model.modules())
    structure = structure_bytes(block, degrees=degrees) if options.topology == "split" else 0.0
    sums = pulled_by(split, block, team=grid.size, itemsize=2 if options.wire == "bf16" else 4, structure=structure)
    name, verb = ("push_pull", "above") if sums < rows else ("data", "below")
    return name, (
        f"parallel {name}: a batch's features would be {rows / 1e6:.2f} MB sent by a rank, {verb} the {sums / 1e6:.2f} MB of "
        f"push_pull (blocks of {block.num_src:.0f} nodes, {block.num_dst:.0f} targets)"
    )


def mean_block(data: Dataset, options: NodeOptions) -> Block:
    """The first layer's block of some batches of this run."""
    loader = NeighborLoader(
        Dataset(data.graph),
        options.fanouts,
        data.splits["train"],
        batch_size=options.batch_size,
        shuffle=True,
        seed=options.seed,
        staleness=0,
    )
    blocks = (batch.blocks[-1] for batch in islice(loader, _TRIED))
    return Block.mean([Block(block.num_src, block.num_dst, len(block.indices)) for block in blocks])


def hit_rate(data: Dataset, options: NodeOptions, share: float | None = None) -> float:
    """How often a row that another rank owns is among the copies of this one, a `share` of all (default: the options')."""
    share = options.replicate_share if share is None else share
    if not share:
        return 0.0
    hotness = _hotness(data, options)
    return expected_hit_rate(hotness, order_of(hotness), share)


def _hotness(data: Dataset, options: NodeOptions) -> Tensor:
    return access_probability(data.graph, data.splits["train"], options.fanouts, batch_size=options.batch_size)


def _by_batches(data: Dataset, model: nn.Module, setup: Setup) -> NodeRecipe:
    remote: Remote | None = None
    if setup.ranks.size > 1:
        if setup.options.share == "ranks" and data.x is not None:
            remote = _spread(data, setup)
        data = _once_per_machine(data, setup)
    return NodeRecipe(data, model, setup.options, setup.trace, remote=remote, **setup.shared)


def _spread(data: Dataset, setup: Setup) -> Remote:
    """Features over all ranks, the hottest copied to each (SALIENT++, Kaler et al., MLSys'23)."""
    assert data.x is not None
    options: NodeOptions = setup.options
    copies = None
    if options.replicate_share:
        copies = order_of(_hotness(data, options))[: round(options.replicate_share * data.num_nodes)]
    owners = hash_owners(data.num_nodes, setup.ranks.size)
    remote = Remote(data.x, owners, device=options.device, replicate=copies)
    setup.opened.push(closing(remote.close))
    return remote


def _by_columns(data: Dataset, model: nn.Module, setup: Setup) -> PushPullRecipe:
    if data.x is None:
        raise ValueError("push_pull cuts features by columns, and this dataset has none: use parallel data")
    grid = Grid(setup.ranks.rank, setup.ranks.size, setup.options.slices)
    begin, end = grid.columns(data.num_features)
    features = ColumnSlice(data.x, begin, end)
    device = torch.device(setup.options.device)
    if device.type != "cpu":
        assert features.table is not None
        features = ColumnSlice.of(rows_on(device, features.table, data, setup.options), begin, of=data.num_features)
    recipe = PushPullRecipe(
        _once_per_machine(data, setup),
        model,
        setup.options,
        setup.trace,
        features=features,
        grid=grid,
        team=exchange_of(grid.members, setup),
        replicas=exchange_of(grid.replicas, setup),
        **setup.shared,
    )
    setup.opened.push(closing(recipe.engine.close))
    return recipe


def exchange_of(members: range, setup: Setup) -> Exchange | None:
    """An exchange of some of the ranks; None for one alone. All ranks call it."""
    if len(members) == 1:
        return None
    group = None if len(members) == setup.ranks.size else dist.new_group(list(members), use_local_synchronization=True)
    exchange = Exchange(group, device=setup.options.device)
    setup.opened.push(closing(exchange.close))
    return exchange


def closing(close: Callable[[], object]) -> Callable[..., None]:
    """What an `ExitStack` calls at its end: `close`, unless this rank has failed and others may wait in a collective."""

    def end(kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None or issubclass(kind, Stopped):
            close()

    return end


def _once_per_machine(data: Dataset, setup: Setup) -> Dataset:
    """The dataset with its graph and features in memory that the ranks of a machine share."""
    graph = data.graph
    tensors = {"indptr": graph.indptr, "indices": graph.indices} | ({} if data.x is None else {"x": data.x})
    held = once_per_machine(tensors, setup.ranks, setup.opened)
    values = {"weight": graph.weight, "time": graph.time, "edge_id": graph.edge_id, "permutation": graph.permutation}
    return replace(data, x=held.get("x"), graph=Graph(held["indptr"], held["indices"], **values))
