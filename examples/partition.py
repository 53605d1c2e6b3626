"""A dataset cut into parts for several machines: what the ways to cut come to, and what a machine holds of it."""

import tempfile
from pathlib import Path

import torch

import headrace as hr

data = hr.generate.community(nodes=20_000, edges=400_000, classes=10, features=33, seed=0)
with tempfile.TemporaryDirectory() as folder:
    for by in ("hash", "ldg", "rabbit"):
        summary = hr.cluster.partition(data, Path(folder) / by, parts=4, by=by)
        print(f"{by:>6}: {summary.edge_cut:.0%} of the edges join two parts, {summary.ghosts:,} ghosts, {summary.seconds:.1f} s")

    # What a machine needs is the directory of its own part: neighbors keep their ids, and the owner of each is known.
    part = hr.cluster.Part.open(Path(folder) / "ldg" / "part-2", verify=True)
    print(part)
    owner, row = part.owners.locate(part.indices[:5])
    print(f"the first neighbors are of parts {owner.tolist()}, in their rows {row.tolist()}")
    assert part.x.equal(data.x[part.ids])

    # By column, a part has some features of every node.
    hr.cluster.partition(data, Path(folder) / "columns", parts=4, columns=True)
    parts = [hr.cluster.Part.open(Path(folder) / "columns", number) for number in range(4)]
    slices = [hr.store.ColumnSlice.of(part.x, part.columns[0], of=part.num_features) for part in parts]
    print("columns:", [rows.columns for rows in slices])
    ids = torch.tensor([7, 19_999])
    assert torch.cat([rows.gather(ids) for rows in slices], dim=1).equal(data.x[ids])
