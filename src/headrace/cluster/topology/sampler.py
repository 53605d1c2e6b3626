"""`SplitSampler`: neighbors from a graph whose rows are split over ranks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, check_ids, thread_count
from headrace.cluster.topology.asked import Asked
from headrace.cluster.topology.growing import Growing, Request, Tables
from headrace.cluster.topology.message import unpacked
from headrace.cluster.topology.rounds import Kind, Message, Rounds
from headrace.cluster.topology.share import Share
from headrace.ranks import Alone, Exchange, Ranks
from headrace.sample import Sample, Sampler
from headrace.sample.neighbor import _STAMP_NODES
from headrace.sample.sampler import check_batch, check_seed
from headrace.store import BufferPool, Owners

_ADVICE = (
    "Every rank must make the same calls of sample, sample_many, degrees and finish; one without a batch passes no seeds, "
    "one that has no more calls finish()"
)


class SplitSampler(Sampler):
    """Samples as `NeighborSampler` does, bit for bit, where every rank has only its own rows of the graph.

    P3 (Gandhi and Iyer, OSDI 2021) hashes topology by node in this way.

    In every hop a rank asks the owners of its frontier, with the key of its batch; they draw, since a draw is a function of
    (seed, epoch, batch, hop, node, slot) alone, and the answers are numbered as on one machine. One exchange a hop: rows there,
    neighbors back.

    All calls are collective: every rank makes the same ones (`sample`, `sample_many`, `degrees`, `finish`) in the same order, each
    with batches of its own. A rank without a batch passes no seeds and still answers; one that has run out of batches calls
    `finish()`. The work is done on the caller's thread. Calls from several threads of a rank take turns, so that a
    `NeighborLoader` may sample ahead if nothing else is asked of this sampler meanwhile. An error on one rank is raised on all.

    indptr, indices: this rank's rows, in the order of `owners.ids_of(rank)`. `indices` are ids in the whole graph, in its order.
    owners: which rank owns which node; the same on all ranks, like `fanouts`, `replace` and `seed`.
    weighted, labor, disjoint, temporal: refused. These draws of `NeighborSampler` need the whole graph.
    group: a process group, `Ranks`, or None for all processes of the job. The exchange has process groups of its own.
    exchange: one to use in place of that; it stays open.

    >>> import torch
    >>> import headrace as hr
    >>> from headrace.cluster.topology import SplitSampler
    >>> graph = hr.generate.community(nodes=1000, edges=20000, classes=4, features=0).graph
    >>> owners = hr.store.TableOwners(torch.zeros(1000, dtype=torch.int64), ranks=1)  # of one rank, for the example
    >>> sampler = SplitSampler(graph.indptr, graph.indices, owners, [5, 3], seed=7, group=hr.ranks.Alone())
    >>> whole = hr.sample.NeighborSampler(graph, [5, 3], seed=7)
    >>> torch.equal(sampler.sample([3, 14], epoch=1, batch=2).nodes, whole.sample([3, 14], epoch=1, batch=2).nodes)
    True
    """

    def __init__(
        self,
        indptr: Any,
        indices: Any,
        owners: Owners,
        fanouts: Sequence[int],
        *,
        replace: bool = False,
        weighted: bool = False,
        labor: bool = False,
        disjoint: bool = False,
        temporal: str | None = None,
        seed: int = 0,
        group: dist.ProcessGroup | Ranks | None = None,
        exchange: Exchange | None = None,
        threads: int | None = None,
        timeout: float = 300.0,
        pool: BufferPool | None = None,
    ) -> None:
        if group is not None and exchange is not None:
            raise ValueError("give the group, of which an exchange is made, or an exchange, not both")
        self.owners, self.fanouts, self.replace, self.seed = owners, [int(k) for k in fanouts], replace, seed
        self.threads = thread_count(threads)
        self.pool = pool if pool is not None else BufferPool(limit=256 << 20)
        self._own_exchange = exchange is None and not isinstance(group, Alone)
        self.exchange = Exchange(group, timeout=timeout, advice=_ADVICE) if self._own_exchange else exchange
        self._rounds = Rounds(self.exchange)
        self._turn = threading.Lock()
        others = {"weighted": weighted, "labor": labor, "disjoint": disjoint, "temporal": temporal}
        try:
            self._hold(indptr, indices, refused=[name for name, value in others.items() if value])
        except Exception:
            self.close()
            raise

    def _hold(self, indptr: Any, indices: Any, *, refused: list[str]) -> None:
        """Take this rank's rows, once all ranks agree that they hold parts of one graph and will sample it alike."""
        owners, rounds = self.owners, self._rounds
        problem, share = None, None
        try:
            if refused:
                raise ValueError(
                    f"a split graph is drawn from uniformly: {' and '.join(refused)} need NeighborSampler and the whole one"
                )
            if owners.ranks != rounds.size:
                raise ValueError(f"owners are for {owners.ranks} ranks, the group has {rounds.size}")
            if not self.fanouts or min(self.fanouts) < -1:
                raise ValueError(f"fanouts must be one number per hop, each at least 0 or -1 for all; got {self.fanouts}")
            check_seed(self.seed)
            share = Share(indptr, indices, owners, rounds.rank)
        except (ValueError, IndexError, TypeError) as error:
            problem = str(error)
        same = {
            "number of nodes": str(owners.num_nodes),
            "owners": owners.fingerprint,
            "fanouts": str(self.fanouts),
            "seed": str(self.seed),
            "drawing with replacement": str(self.replace),
            "type of indices": "" if share is None else str(share.indices.dtype),
        }
        rounds.agree(same, problem=problem)
        assert share is not None
        self.share = share
        largest = max(owners.size(rank) for rank in range(owners.ranks))
        self.row_dtype = torch.int32 if largest < 1 << 31 else torch.int64
        wide, hashed = share.indices.dtype == torch.int64, owners.num_nodes > _STAMP_NODES
        self._tables = Tables(owners.num_nodes, wide=wide, hashed=hashed)

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        return self.owners.num_nodes

    @property
    def workspace_bytes(self) -> int:
        """Memory kept between calls, to find repeated nodes."""
        return self._tables.nbytes

    def sample(
        self,
        seeds: Any,
        epoch: int = 0,
        batch: int = 0,
        *,
        time: Any | None = None,
        edge_ids: bool = False,
        threads: int | None = None,
    ) -> Sample:
        """The sample of this rank's `seeds`, which may be none, as batch `batch` of epoch `epoch`. Collective.

        Rows carry no times and no edge ids: `time` and `edge_ids` are refused.
        """
        (sample,) = self._sample([(seeds, epoch, batch)], time=time, edge_ids=edge_ids, threads=threads)
        return sample

    def sample_many(self, batches: Sequence[tuple[Any, int, int]], *, threads: int | None = None) -> list[Sample]:
        """The samples of several batches (seeds, epoch, batch) of this rank, by one exchange a hop for all of them. Collective.

        Ranks may have different numbers of batches, or none.
        """
        return self._sample(batches, threads=threads)

    def degrees(self, nodes: Any) -> Tensor:
        """In-degrees of any nodes in the whole graph, edges from a node to itself not counted. Collective.  # [n] -> [n], int64"""
        asked: list[Asked] = []

        def ask() -> Message:
            ids = as_ids(nodes, "nodes")
            check_ids(ids, self.num_nodes, name="nodes", of="nodes")
            asked.append(Asked.of(ids, self.owners, self.row_dtype))
            return torch.from_numpy(asked[0].rows), asked[0].sizes

        with self._turn:
            _, rows = self._begin(Kind.degrees, ask)
            return asked[0].in_order(self._answer_degrees(rows, asked[0].sizes)).long()

    def finish(self) -> None:
        """This rank has no more to ask: answer the others until they have not either. Then all may go on (a new epoch)."""
        with self._turn:
            while True:
                kinds, asked = self._begin(Kind.finished, self._nothing)
                if Kind.sample in kinds:
                    self._walk(self._growing(self.threads), asked, Kind.finished, self.threads)
                elif Kind.degrees in kinds:
                    self._answer_degrees(asked, [0] * self._rounds.size)
                else:
                    return

    def close(self) -> None:
        """End the process groups; every rank, after the last exchange."""
        if self._own_exchange and self.exchange is not None:
            self.exchange.close()

    def _sample(
        self,
        batches: Sequence[tuple[Any, int, int]],
        *,
        time: Any | None = None,
        edge_ids: bool = False,
        threads: int | None = None,
    ) -> list[Sample]:
        workers = self.threads if threads is None else thread_count(threads)
        growing = self._growing(workers)

        def ask() -> Message:
            if time is not None:
                raise ValueError("a split graph has no times: sample by time from the whole graph, with NeighborSampler")
            if edge_ids:
                raise ValueError("a split graph has no edge ids: leave edge_ids out, or sample the whole graph")
            return growing.begin([self._request(*batch) for batch in batches])

        with self._turn:
            try:
                _, asked = self._begin(Kind.sample, ask)
                return self._walk(growing, asked, Kind.sample, workers)
            finally:
                growing.release()

    def _request(self, seeds: Any, epoch: int, batch: int) -> Request:
        ids = as_ids(seeds, "seeds", dtype=torch.int64)
        check_batch(epoch, batch)
        check_ids(ids, self.num_nodes, name="seeds", of="nodes")
        return Request(ids, _native.stream_key(self.seed, epoch, batch, _native.Purpose.sample))

    def _growing(self, threads: int) -> Growing:
        return Growing(self.owners, self._tables, self.pool, row_dtype=self.row_dtype, threads=threads)

    def _begin(self, kind: Kind, ask: Any) -> tuple[list[Kind], list[Tensor]]:
        if self.exchange is not None:
            self.exchange.begin()
        return self._rounds.send("nodes", kind, ask)

    def _walk(self, growing: Growing, asked: list[Tensor], kind: Kind, threads: int) -> list[Sample]:
        """All hops, after the first was asked for."""
        for hop in range(len(self.fanouts)):
            _, answers = self._rounds.send("neighbors", kind, partial(self._answer, asked, hop, threads))
            if hop + 1 < len(self.fanouts):
                _, asked = self._rounds.send("nodes", kind, partial(growing.add, answers))
        return growing.finish(answers)

    def _answer(self, asked: list[Tensor], hop: int, threads: int) -> Message:
        """Draw for all ranks, this one too, in one go."""
        groups = [unpacked(words.numpy()) for words in asked]
        drawn, lengths = self.share.draw(
            [group for of_rank in groups for group in of_rank],
            self.pool,
            fanout=self.fanouts[hop],
            hop=hop,
            replace=self.replace,
            threads=threads,
        )
        each = iter(lengths)
        return drawn, [sum(next(each) for _ in of_rank) for of_rank in groups]

    def _answer_degrees(self, rows: list[Tensor], receiving: Sequence[int]) -> list[Tensor]:
        words = self.share.degrees[torch.cat(rows).long()]
        return self._rounds.reply("degrees", words, sending=[len(each) for each in rows], receiving=receiving)

    def _nothing(self) -> Message:
        return torch.empty(0, dtype=self.row_dtype), [0] * self._rounds.size
