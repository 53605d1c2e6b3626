"""Link prediction: seconds of an epoch beside PyTorch-BigGraph and PyKEEN, how well ours and BigGraph's ranks, and how fast.

DistMult with relations for either side (BigGraph has those of necessity), softmax over 50 ends of the batch and 50 uniform nodes a
question, Adagrad, on fb15k. Peers run in processes of their own, by `peers_python` where they have an environment of their own. The
limit of an epoch is its products, forward and for two gradients, at the rate of one large product of torch.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from headrace.bench.links import peers
from headrace.bench.measure import Epochs, Row, rate_row, time_in_turn
from headrace.bench.setting import Setting, threads_of
from headrace.graph import Dataset, load, open_dataset
from headrace.nn import DistMult, shared_softmax_loss
from headrace.nn.links.link_losses import softmax_loss
from headrace.store import TrainedArray
from headrace.train import LinkOptions, link
from headrace.train.inference.ranking import rank
from headrace.train.links.data import LinkData
from headrace.train.options import option

_RANKED, _PIECE = 4096, 512  # edges, and rows at a time
_DIM, _BATCH, _NEGATIVES, _CHUNKS, _EPOCHS = 100, 1000, 100, 10, 10
_NAMES = {"biggraph": "PyTorch-BigGraph", "pykeen": "PyKEEN, a part of an epoch scaled"}


@dataclass(frozen=True)
class LinkPeersSetting(Setting):
    """Options of `headrace bench link`."""

    peers_python: str | None = option(None, "an interpreter whose environment has the peers (default: this one)")


def run(setting: LinkPeersSetting) -> list[Row]:
    """Turns of ours and BigGraph, the median of each; PyKEEN once, for it takes minutes."""
    data = load("fb15k") if setting.data is None else open_dataset(Path(setting.data))
    edges = LinkData.of(data)
    batch = min(_BATCH, len(edges.train))
    case = f"{data.info.get('name') or setting.data}, DistMult, d={_DIM}, batches of {batch}, {_NEGATIVES} negatives a question"
    seconds: dict[str, list[float]] = {"ours": []}
    mrr: dict[str, float] = {}
    with threads_of(setting.threads), tempfile.TemporaryDirectory() as folder:
        _check_agree(batch)
        for turn in range(setting.repeats):
            setting.progress(f"turn {turn + 1}: {_EPOCHS} epochs of ours")
            seconds["ours"].append(_ours(data, setting.threads, batch, mrr))
            for peer in ("biggraph", "pykeen") if turn == 0 else ("biggraph",):
                if not setting.wants(peer) or (turn and peer not in seconds):
                    continue
                setting.progress(f"turn {turn + 1}: {_NAMES[peer]}")
                out = Path(folder) / f"{peer}.npz"
                taken = _peer(peer, edges, setting, out, batch)
                if taken is not None:
                    seconds.setdefault(peer, []).append(taken)
                if taken is not None and out.exists() and peer not in mrr:
                    mrr[peer] = _mrr_of(out, edges)
        limit = _limit(len(edges.train))
        setting.progress("ranking")
        ranking = _ranking(edges, setting.repeats)
    median = {_NAMES.get(name, name): statistics.median(times) for name, times in seconds.items()}
    named = {_NAMES.get(name, name): value for name, value in mrr.items()}
    rows = [Row(case, "epoch", "s", median.pop("ours"), median, limit), ranking]
    if len(edges.test):
        rows.append(Row(case, f"filtered MRR of the test edges after {_EPOCHS} epochs", "share", named.pop("ours"), named))
    return rows


def _check_agree(batch: int) -> None:
    """What is timed is the loss that its plain formula gives, with its gradients, or nothing is timed."""
    generator = torch.Generator().manual_seed(0)
    counts = (batch // 5, batch // 5, _NEGATIVES)
    query, answer, candidates = (torch.randn(2, count, _DIM, generator=generator) / 5 for count in counts)
    inputs = [x.requires_grad_() for x in (query, answer, candidates)]
    ours = shared_softmax_loss(query, answer, candidates)
    plain = softmax_loss((query * answer).sum(-1), torch.bmm(query, candidates.transpose(1, 2)))
    pairs = zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(plain, inputs), strict=True)
    if not torch.allclose(ours, plain) or not all(torch.allclose(a, b, atol=1e-6) for a, b in pairs):
        raise RuntimeError(f"the loss is {ours.item()} and by its plain formula {plain.item()}: nothing is timed")


def _ours(data: Dataset, threads: int, batch: int, mrr: dict[str, float]) -> float:
    options = LinkOptions(
        decoder="distmult",
        reciprocal=True,
        dim=_DIM,
        batch_size=batch,
        negatives=_NEGATIVES,
        chunks=_CHUNKS,
        degree_fraction=0.5,
        epochs=_EPOCHS,
        val_edges=1,
        test_edges=1 if "ours" in mrr else 0,
        threads=threads,
    )
    seen = Epochs()
    result = link(data, options, watcher=seen)
    if "ours" not in mrr and result.test:
        mrr["ours"] = result.test["mrr"]
    return float(statistics.median(facts["epoch_seconds"] for facts in seen.facts[1:]))


def _peer(peer: str, edges: LinkData, setting: LinkPeersSetting, out: Path, batch: int) -> float | None:
    """Seconds of an epoch, or None where the peer is not installed."""
    triples, task_file = out.with_name("triples.npy"), out.with_name("task.json")
    shuffled = edges.train[torch.randperm(len(edges.train), generator=torch.Generator().manual_seed(0))]
    np.save(triples, shuffled.numpy())
    task = {
        "triples": str(triples),
        "nodes": edges.num_nodes,
        "relations": edges.num_relations,
        "dim": _DIM,
        "batch": batch,
        "negatives": _NEGATIVES,
        "epochs": _EPOCHS,
        "threads": setting.threads,
        "out": str(out),
    }
    task_file.write_text(json.dumps(task))
    command = [setting.peers_python or sys.executable, str(Path(peers.__file__)), peer, str(task_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == peers.ABSENT:
        return None
    if done.returncode:
        raise ValueError(f"{_NAMES[peer]} failed: {done.stderr.strip()[-500:]}")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["seconds"])


def _ranking(edges: LinkData, repeats: int) -> Row:
    """Scores a second of a full ranking, raw, beside the same in a few lines of torch. The limit is the products alone."""
    generator = torch.Generator().manual_seed(0)
    rows, triples = torch.randn(edges.num_nodes, _DIM, generator=generator), edges.train[:_RANKED].long()
    decoder = DistMult(_DIM, edges.num_relations).requires_grad_(False)
    decoder.relation.copy_(torch.randn(decoder.relation.shape, generator=generator))
    head, relation, tail = triples.unbind(1)
    query = torch.cat([decoder.query(rows[head], relation), decoder.query(rows[tail], relation, side="head")])
    target = torch.cat([tail, head])
    own = (query * rows[target]).sum(1, keepdim=True)

    def plain() -> float:
        above, level = torch.zeros(len(query), dtype=torch.int64), torch.zeros(len(query), dtype=torch.int64)
        for begin, piece in zip(range(0, len(rows), _PIECE), rows.split(_PIECE), strict=True):
            scores, tolerance = query @ piece.T, 1e-5 * own.abs()
            inside = ((target >= begin) & (target < begin + len(piece))).nonzero().flatten()
            scores[inside, target[inside] - begin] = -torch.inf
            above += (scores > own + tolerance).sum(1)
            level += ((scores >= own - tolerance) & (scores <= own + tolerance)).sum(1)
        return float((1 / (1 + above + level / 2)).double().mean())

    def ours() -> float:
        return rank(decoder, TrainedArray(rows, torch.zeros(len(rows), 0)), triples).raw.mrr

    def limit() -> None:
        for piece in rows.split(_PIECE):
            query @ piece.T

    if abs(ours() - plain()) > 1e-4:  # scores within rounding of a true one may count for it or against it
        raise RuntimeError(f"the MRR is {ours()} and in plain torch {plain()}: nothing is timed")
    seconds = time_in_turn({"ours": ours, "plain torch": plain, "limit": limit}, repeats=repeats)
    work = dict.fromkeys(seconds, len(query) * len(rows) / 1e9)
    return rate_row(f"{len(triples)} edges among {len(rows)} nodes, d={_DIM}", "full ranking", "G scores/s", work, seconds)


def _mrr_of(file: Path, edges: LinkData) -> float:
    """The filtered MRR of what BigGraph learned, by our ranking."""
    with np.load(file) as learned:
        rows, relation = (torch.from_numpy(learned[name]).float() for name in ("rows", "relation"))
    decoder = DistMult(rows.shape[1], edges.num_relations, reciprocal=True)
    with torch.no_grad():
        decoder.relation.copy_(relation)
    ranking = rank(decoder, TrainedArray(rows, torch.zeros(len(rows), 0)), edges.test, known=edges.known())
    assert ranking.filtered is not None
    return ranking.filtered.mrr


def _limit(edges: int) -> float:
    """Seconds of an epoch's products at the rate of one that fills the machine."""
    size = 1024
    left, right = torch.randn(size, size), torch.randn(size, size)
    taken = []
    for _ in range(10):
        begin = perf_counter()
        left @ right
        taken.append(perf_counter() - begin)
    return 3 * 2 * 2 * edges * _NEGATIVES * _DIM / (2 * size**3 / min(taken))
