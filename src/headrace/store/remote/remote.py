"""`Remote`: rows that lie on several ranks, gathered by one packed exchange a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from headrace._arrays import as_ids_near, as_tensor, check_apart, check_ids
from headrace._device import device_of
from headrace.kernels import gather
from headrace.ranks.exchange import Exchange, Transfer
from headrace.ranks.ranks import Ranks
from headrace.ranks.turns import Pending, Turns
from headrace.store.array import ArrayStore
from headrace.store.raw_rows import piece_rows
from headrace.store.remote.owners import Owners
from headrace.store.remote.protocol import Kind, RowExchange
from headrace.store.remote.replicas import Replicas
from headrace.store.remote.use import RemoteUse
from headrace.store.store import BaseStore, Store, WritableStore, check_rows

T = TypeVar("T")


class Remote(BaseStore):
    """Rows partitioned over the ranks of a process group; hot ones may be copied to every rank.

    A gather is three collectives: counts, ids, rows. It is collective: every rank makes the same calls of `gather`, `prefetch`,
    `add_` and `finish` in the same order, from one thread; a rank with nothing to ask passes no ids, and one that has run out of
    batches calls `finish()`, in which it answers the others until they have finished too. Exchanges run one after another on a
    thread and process groups of their own, so `prefetch(ids)` fetches the next batch while the current one trains. A rank that
    does not come within `timeout` seconds is named in the error that the others raise.

    `rows` are all rows (an array, a tensor, a memory map), of which this rank copies its share; `from_local` takes the share
    itself. `replicate`: nodes whose rows this rank copies (default: what `owners` says). `device`: where gathered rows come
    out. With NCCL and a GPU `device` ids and rows travel between GPUs, otherwise through host memory.

    >>> import tempfile, torch
    >>> from headrace.store import Remote, hash_owners
    >>> torch.distributed.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
    >>> store = Remote(torch.arange(6.).view(3, 2), hash_owners(3, ranks=1))
    >>> store.gather(torch.tensor([2, 0])).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    >>> store.close(); torch.distributed.destroy_process_group()
    """

    def __init__(
        self,
        rows: Tensor | NDArray[Any],
        owners: Owners,
        *,
        group: dist.ProcessGroup | Ranks | None = None,
        replicate: Tensor | None = None,
        device: torch.device | str = "cpu",
        timeout: float = 300.0,
        ahead: int = 2,
        threads: int | None = None,
    ) -> None:
        self._join(owners, group=group, device=device, timeout=timeout, ahead=ahead)
        everything = rows if isinstance(rows, Tensor) and rows.device.type != "cpu" else as_tensor(rows, "rows")
        problem = None
        if len(everything) != owners.num_nodes:
            problem = f"rows has {len(everything)} rows, and owners {owners.num_nodes} nodes: pass all rows, or use from_local"
        mine = self._exchange.rank if problem is None and owners.ranks == self._exchange.size else None
        share = gather(everything, owners.ids_of(mine) if mine is not None else torch.empty(0, dtype=torch.int64))
        self._hold(share, replicate, threads=threads, problem=problem)
        self.replicas.fill(gather(everything, self.replicas.copied))

    @classmethod
    def from_local(
        cls,
        rows: Tensor | NDArray[Any] | Store,
        owners: Owners,
        *,
        group: dist.ProcessGroup | Ranks | None = None,
        replicate: Tensor | None = None,
        device: torch.device | str = "cpu",
        timeout: float = 300.0,
        ahead: int = 2,
        threads: int | None = None,
    ) -> Remote:
        """From this rank's rows alone, in the order of `owners.ids_of(rank)`, or a store of them; copies are fetched."""
        self = cls.__new__(cls)
        self._join(owners, group=group, device=device, timeout=timeout, ahead=ahead)
        self._hold(rows, replicate, threads=threads, problem=None)
        copied = self.replicas.copied
        step = piece_rows(self.row_bytes)
        parts = -(-self._most_copied // step)  # as many on every rank, since a gather is collective
        copies = [self.gather(copied[at * step : (at + 1) * step]) for at in range(parts)]
        self.replicas.fill(torch.cat(copies) if copies else torch.empty((0, *self.shape[1:]), dtype=self.dtype))
        self._reset_use()
        return self

    def _join(self, owners: Owners, *, group: dist.ProcessGroup | Ranks | None, device: Any, timeout: float, ahead: int) -> None:
        self.device = device_of(device)
        self._exchange = RowExchange(group, device=self.device, timeout=timeout)
        self.owners = owners.to(self._exchange.wire)
        self._turns = Turns(ahead=ahead, name=f"headrace.Remote of rank {self._exchange.rank}", device=self.device)
        self._reset_use()

    def _reset_use(self) -> None:
        self._local_hits = self._replica_hits = self._remote_hits = self._added = 0
        self._turns.waited, self._turns.peak = 0.0, 0
        self._exchange.reset_use()

    def _hold(self, rows: Any, replicate: Tensor | None, *, threads: int | None, problem: str | None) -> None:
        """Take the share, once all ranks agree that they hold parts of one thing."""
        exchange, owners = self._exchange, self.owners
        self.local: Store = rows if isinstance(rows, Store) else ArrayStore(rows, threads=threads)
        self.shape, self.dtype = torch.Size((owners.num_nodes, *self.local.shape[1:])), self.local.dtype
        if owners.ranks != exchange.size:
            problem = problem or f"owners are for {owners.ranks} ranks, the group has {exchange.size}"
        elif self.local.shape[0] != owners.size(exchange.rank):
            problem = problem or f"this rank was given {self.local.shape[0]} rows, its share is {owners.size(exchange.rank)}"
        self.replicas = Replicas(owners, exchange.rank, exchange.wire)
        try:
            if problem is None:
                self.replicas.choose(owners.replicas(exchange.rank) if replicate is None else replicate)
        except (ValueError, IndexError) as error:
            problem = str(error)
        try:
            told = exchange.agree(
                {"owners": owners.fingerprint, "row shape": str(list(self.local.shape[1:])), "dtype": str(self.dtype)},
                problem=problem,
                told={
                    "mark": self.replicas.mark,
                    "rows": self.local.shape[0] + len(self.replicas.ids),
                    "copied": len(self.replicas.copied),
                },
            )
        except Exception:
            self._turns.close()
            raise
        self.replicas.common = len(set(told["mark"])) == 1
        self._most_copied = max(told["copied"])
        self._id_dtype = torch.int32 if max(told["rows"]) < 1 << 31 else torch.int64
        self._width = self.local.shape[1:].numel()

    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        """Rows by id, from wherever they are. Collective.  # [n] -> [n, d]"""
        return self.prefetch(ids, out=out).wait()

    def prefetch(self, ids: Tensor, *, out: Tensor | None = None) -> Pending[Tensor]:
        """Start to gather and return at once; `wait()` on what this returns gives the rows. Collective.  # [n]"""
        ids = _checked(ids, len(self))
        if out is not None and (out.shape != (len(ids), *self.shape[1:]) or out.dtype != self.dtype or out.device != self.device):
            raise ValueError(
                f"out must be {self.dtype} of shape {[len(ids), *self.shape[1:]]} on {self.device}; "
                f"it is {out.dtype}, {list(out.shape)} on {out.device}"
            )
        if out is not None:
            check_apart(out, ids=ids, **{"this rank's rows": self.local.table})
        return self._submit(lambda: self._gather(ids, out), ids, out)

    def stream(self, batches: Iterable[Tensor], *, ahead: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Ids and rows of every batch, `ahead` of them fetched while one is used; ends with `finish()`, so tails may be uneven.

        A loop that is left early must call `finish()` itself.
        """
        under_way: list[tuple[Tensor, Pending[Tensor]]] = []
        for ids in batches:
            under_way.append((ids, self.prefetch(ids)))
            if len(under_way) > ahead:
                first, rows = under_way.pop(0)
                yield first, rows.wait()
        for first, rows in under_way:
            yield first, rows.wait()
        self.finish()

    def add_(self, ids: Tensor, delta: Tensor) -> None:
        """Add `delta[i]` to row `ids[i]`, wherever it is, repeated ids included. Collective.  # [n], [n, d]

        Every row takes the deltas of rank 0 first, then of rank 1 and so on, each rank's in the order given: so it has the same
        bits on every run, and on every rank that holds a copy. Copied rows can be written only where all ranks copy the same ones.
        """
        self._write(ids, delta, Kind.add, "delta")

    def put_(self, ids: Tensor, rows: Tensor) -> None:
        """Put `rows[i]` in place of row `ids[i]`, wherever it is, no id twice on a rank. Collective.  # [n], [n, d]

        Where several ranks put the same row, the last rank's stays.
        """
        self._write(ids, rows, Kind.put, "rows")

    def _write(self, ids: Tensor, rows: Tensor, kind: Kind, name: str) -> None:
        ids = _checked(ids, len(self))
        check_rows(ids, rows, self, name)
        if not isinstance(self.local, WritableStore):
            raise ValueError(f"the rows of this rank are in a {type(self.local).__name__}, which has no add_ and put_")
        if not self.replicas.common:
            raise ValueError(
                "ranks copy different rows (replicate=), so copies would go stale: copy the same ones on every rank, or none"
            )
        self._submit(lambda: self._send(ids, rows, kind), ids, rows).wait()

    def finish(self) -> None:
        """This rank has no more batches: answer the others until they have none either. Then all may go on (a new epoch)."""
        self._submit(self._finish).wait()

    def use(self) -> RemoteUse:
        """Return what was asked for and moved since this store was built."""
        hits = (self._local_hits, self._replica_hits, self._remote_hits)
        return RemoteUse(
            sum(hits), *hits, added=self._added, waited=self._turns.waited, peak=self._turns.peak, **self._exchange.use()
        )

    @property
    def exchange(self) -> Exchange:
        """The exchange that carries ids and rows."""
        return self._exchange

    def close(self) -> None:
        """End the thread and the process groups; every rank, after the last exchange."""
        self._turns.close()
        self._exchange.close()

    def _submit(self, work: Callable[[], T], *reads: Tensor | None) -> Pending[T]:
        def reported() -> T:
            try:
                return work()
            except Exception as error:
                self._exchange.report(error)
                raise

        return self._turns.submit(reported, reads=reads)

    def _gather(self, ids: Tensor, out: Tensor | None) -> Tensor:
        ids = ids.to(self._exchange.wire)
        owner, row = self.owners.locate(ids)
        own = (owner == self._exchange.rank).nonzero().flatten()
        away = (owner != self._exchange.rank).nonzero().flatten()
        copied, copy_row = away[:0], row[:0]
        if self.replicas.ready:
            slot = self.replicas.row_of(ids[away])
            copied, copy_row, away = away[slot >= 0], slot[slot >= 0], away[slot < 0]
        away = away[torch.argsort(owner[away], stable=True)]
        asked = torch.bincount(owner[away], minlength=self._exchange.size).tolist()
        _, wanted = self._exchange.ask(Kind.gather, asked)
        transfer = self._answer(row[away], asked, wanted)
        # While rows travel: what is at hand.
        if out is None:
            out = torch.empty((len(ids), *self.shape[1:]), dtype=self.dtype, device=self.device)
        self._put(out, own, self._local_rows(row[own]))
        if len(copied):
            self._put(out, copied, self.replicas.gather(copy_row))
        self._put(out, away, transfer.wait())
        self._local_hits += len(own)
        self._replica_hits += len(copied)
        self._remote_hits += len(away)
        return out

    def _answer(self, rows: Tensor, asked: list[int], wanted: list[int]) -> Transfer:
        """Send ids, and send back the rows that others ask for."""
        theirs = self._exchange.ids(rows.to(self._id_dtype), sending=asked, receiving=wanted)
        answer = self._local_rows(theirs).to(self._exchange.wire)
        return self._exchange.rows(answer.reshape(len(theirs), self._width), sending=wanted, receiving=asked)

    def _local_rows(self, rows: Tensor) -> Tensor:
        return self.local.gather(rows.to(self.local.device))

    def _put(self, out: Tensor, positions: Tensor, rows: Tensor) -> None:
        out.index_copy_(0, positions.to(out.device), rows.to(out.device).view(len(positions), *self.shape[1:]))

    def _send(self, ids: Tensor, rows: Tensor, kind: Kind) -> None:
        """Send what is to be written to the ranks that hold it, and write what they send."""
        ranks, me = self._exchange.size, self._exchange.rank
        ids, rows = ids.to(self._exchange.wire), rows.detach().to(self._exchange.wire).reshape(len(ids), self._width)
        owner, row = self.owners.locate(ids)
        slot = self.replicas.slot_of(ids)
        chosen, addresses = [], []
        for rank in range(ranks):  # its own rows by their row, copies by their place in the common list, after all rows
            at = ((owner == rank) | (slot >= 0)).nonzero().flatten()
            chosen.append(at)
            addresses.append(torch.where(owner[at] == rank, row[at], self.owners.size(rank) + slot[at]))
        mine = (addresses[me], rows[chosen[me]])
        chosen[me], addresses[me] = chosen[me][:0], addresses[me][:0]
        sending = [len(at) for at in chosen]
        _, receiving = self._exchange.ask(kind, sending)
        self._receive(torch.cat(addresses), rows[torch.cat(chosen)], sending, receiving, kind, mine=mine)
        self._added += len(ids) if kind == Kind.add else 0

    def _receive(
        self, addresses: Tensor, rows: Tensor, sending: list[int], receiving: list[int], kind: Kind, *, mine: tuple[Tensor, Tensor]
    ) -> None:
        theirs = self._exchange.ids(addresses.to(self._id_dtype), sending=sending, receiving=receiving).long()
        received = self._exchange.rows(rows, sending=sending, receiving=receiving).wait()
        before = sum(receiving[: self._exchange.rank])
        at = torch.cat([theirs[:before], mine[0], theirs[before:]])
        received = torch.cat([received[:before], mine[1], received[before:]]).view(len(at), *self.shape[1:])
        if kind == Kind.put:
            last = _last_of_each(at)
            at, received = at[last], received[last]
        own = at < self.owners.size(self._exchange.rank)
        device, copies = self.local.device, (at[~own] - self.owners.size(self._exchange.rank), received[~own])
        assert isinstance(self.local, WritableStore)
        if kind == Kind.add:
            self.local.add_(at[own].to(device), received[own].to(device))
            self.replicas.add_(*copies)
        else:
            self.local.put_(at[own].to(device), received[own].to(device))
            self.replicas.put_(*copies)

    def _finish(self) -> None:
        nothing = [0] * self._exchange.size
        while True:
            kinds, wanted = self._exchange.ask(Kind.finished, nothing)
            no_ids = torch.empty(0, dtype=torch.int64, device=self._exchange.wire)
            no_rows = torch.empty((0, self._width), dtype=self.dtype, device=self._exchange.wire)
            if Kind.gather in kinds:
                self._answer(no_ids, nothing, wanted).wait()
            elif kind := {Kind.add, Kind.put} & set(kinds):
                self._receive(no_ids, no_rows, nothing, wanted, kind.pop(), mine=(no_ids, no_rows))
            else:
                return


def _checked(ids: Any, rows: int) -> Tensor:
    checked = as_ids_near(ids, "ids", ids.device if isinstance(ids, Tensor) else torch.device("cpu"))
    check_ids(checked, rows)
    return checked


def _last_of_each(ids: Tensor) -> Tensor:
    """Positions at which each id comes for the last time.  # [n] -> [m]"""
    ids, order = ids.sort(stable=True)
    return order[torch.cat([ids[1:] != ids[:-1], ids.new_ones(len(ids[:1]), dtype=torch.bool)])]
