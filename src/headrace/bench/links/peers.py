"""An epoch of a peer's link prediction, run by the interpreter that has the peer: `python peers.py PEER FILE`.

FILE is JSON: the training triples (an .npy file), how many nodes and relations there are, dim, batch, negatives (of each question,
half of them from the batch), epochs, threads, and where to write what was learned. Seconds of an epoch are printed as JSON. This
file imports nothing of Headrace: the interpreter need not have it. Exit status 3: the peer is not installed.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from time import perf_counter
from typing import Any

ABSENT = 3
PART = 20  # batches of PyKEEN's epoch that are timed, to be scaled: an epoch takes it minutes


def biggraph(task: dict[str, Any]) -> float:
    """PyTorch-BigGraph: what start and end take cancels in the difference of a long and a short run; the long one is kept."""
    import h5py
    import numpy as np
    from torchbiggraph.config import ConfigSchema, EntitySchema, RelationSchema
    from torchbiggraph.train import train
    from torchbiggraph.util import SubprocessInitializer

    triples = np.load(task["triples"]).astype(np.int64)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "edges").mkdir()
        (folder / "entity_count_all_0.txt").write_text(str(task["nodes"]))
        (folder / "dynamic_rel_count.txt").write_text(str(task["relations"]))
        with h5py.File(folder / "edges" / "edges_0_0.h5", "w") as file:
            file.attrs["format_version"] = 1
            file["lhs"], file["rel"], file["rhs"] = triples[:, 0], triples[:, 1], triples[:, 2]

        def seconds(epochs: int) -> float:
            shutil.rmtree(folder / "model", ignore_errors=True)
            config = ConfigSchema(
                entities={"all": EntitySchema(num_partitions=1)},
                relations=[RelationSchema(name="all", lhs="all", rhs="all", operator="diagonal", all_negs=False)],
                dynamic_relations=True,
                global_emb=False,
                entity_path=name,
                edge_paths=[str(folder / "edges")],
                checkpoint_path=str(folder / "model"),
                dimension=task["dim"],
                comparator="dot",
                loss_fn="softmax",
                lr=0.1,
                num_epochs=epochs,
                batch_size=task["batch"],
                num_batch_negs=task["negatives"] // 2,
                num_uniform_negs=task["negatives"] - task["negatives"] // 2,
                workers=task["threads"],
                eval_fraction=0.0,
                verbose=0,
            )
            begin = perf_counter()
            train(config, subprocess_init=SubprocessInitializer())
            return perf_counter() - begin

        short, long = seconds(1), seconds(task["epochs"])
        version = (folder / "model" / "checkpoint_version.txt").read_text().strip()
        with h5py.File(folder / "model" / f"embeddings_all_0.v{version}.h5") as file:
            rows = file["embeddings"][...]
        weights: dict[str, Any] = {}
        with h5py.File(folder / "model" / f"model.v{version}.h5") as file:
            file["model"].visititems(lambda path, item: weights.update({path: item[...]}) if hasattr(item, "shape") else None)
    sides = [next(v for k, v in weights.items() if f"operator/{side}/diagonal" in k) for side in ("lhs", "rhs")]
    np.savez(task["out"], rows=rows, relation=np.concatenate(sides))
    return float((long - short) / (task["epochs"] - 1))


def pykeen(task: dict[str, Any]) -> float:
    """PyKEEN draws negatives for each edge: as many as both questions of ours have. Timed over a part of an epoch, and scaled."""
    import numpy as np
    import torch
    from pykeen.models import DistMult
    from pykeen.training import SLCWATrainingLoop
    from pykeen.triples import CoreTriplesFactory

    torch.set_num_threads(task["threads"])
    triples = np.load(task["triples"]).astype(np.int64)
    part = triples[: PART * task["batch"]]
    factory = CoreTriplesFactory(torch.from_numpy(part), num_entities=task["nodes"], num_relations=task["relations"])
    model = DistMult(triples_factory=factory, embedding_dim=task["dim"], random_seed=0)
    loop = SLCWATrainingLoop(
        model=model,
        triples_factory=factory,
        optimizer=torch.optim.Adagrad(model.parameters(), 0.1),
        negative_sampler_kwargs={"num_negs_per_pos": 2 * task["negatives"]},
    )
    quiet = {"use_tqdm": False, "use_tqdm_batch": False, "clear_optimizer": False}
    taken = []
    for _ in range(2):  # the first warms up
        begin = perf_counter()
        loop.train(triples_factory=factory, num_epochs=1, batch_size=task["batch"], **quiet)
        taken.append(perf_counter() - begin)
    return taken[-1] * len(triples) / len(part)


PEERS = {"biggraph": biggraph, "pykeen": pykeen}


def main(peer: str, file: str) -> None:
    """Run a peer as the file says."""
    warnings.simplefilter("ignore")
    try:
        seconds = PEERS[peer](json.loads(Path(file).read_text()))
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(ABSENT)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
