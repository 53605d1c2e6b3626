"""Small datasets made by us, which are everywhere: the files of each, and the import that makes a dataset of them.

| name | graph | task |
| --- | --- | --- |
| `towns` | people and whom they know | the town that a person lives in |
| `facts` | triples of things and seven relations | missing triples |
| `visits` | who was where, and when | who will be where |
| `library` | readers, books and authors | the genre of a book |
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.graph import generate
from headrace.graph.dataset import Dataset, open_dataset
from headrace.graph.ingest import IngestOptions, ingest
from headrace.graph.reorder.move import TemporaryPath

Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Example:
    """The files of a dataset, made when they are asked for, and how they are imported."""

    about: str
    make: Callable[[], dict[str, Columns]]
    edges: tuple[str, ...]
    options: Mapping[str, Any]

    def write(self, folder: Path) -> list[Path]:
        """Write the files, all of them CSV; returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, columns in self.make().items():
            paths.append(folder / name)
            with open(paths[-1], "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))
        return paths

    def command(self, folder: str, output: str) -> str:
        """The command that imports the files of a folder."""
        words = ["headrace import", *(_placed(edge, folder) for edge in self.edges), output]
        for name, value in self.options.items():
            joined = ",".join(value) if isinstance(value, tuple) else value
            values = value if name == "nodes" else [joined]
            for text in values:
                flag = f"--{name.replace('_', '-')}"
                words += [flag] if text is True else [flag, _placed(text, folder) if name == "nodes" else str(text)]
        return " ".join(words)


def load_example(name: str) -> Dataset:
    """The dataset `name` of `EXAMPLES`, in memory: what the import of its files gives.

    >>> load_example("towns")
    Dataset(num_nodes=1200, num_edges=19200, num_features=6, num_classes=4, splits=train:240/val:240/test:720)
    """
    example = EXAMPLES[name]
    with tempfile.TemporaryDirectory(prefix="headrace-") as place:
        example.write(Path(place))
        options = dict(example.options)
        if "nodes" in options:
            options["nodes"] = tuple(_placed(text, place) for text in options["nodes"])
        edges = tuple(Path(_placed(edge, place)) for edge in example.edges)
        output = Path(place) / name
        ingest(IngestOptions(edges=edges, output=output, memory="1TiB", **options))
        return _in_memory(open_dataset(output))


def _placed(text: str, folder: str) -> str:
    """A file's name, with its types before it, as a path in `folder`."""
    types, equals, name = text.rpartition("=")
    return f"{types}{equals}{folder}/{name}"


def _in_memory(data: Dataset) -> Dataset:
    """The dataset with copies of all that is in its directory, which may then go."""

    def copied(path: Path) -> TemporaryPath:
        out = TemporaryPath.create(prefix="headrace-names-", suffix=".parquet")
        out.write_bytes(path.read_bytes())
        return out

    return replace(
        data,
        graph=data.graph._mapped(lambda array: array.clone()),
        x=None if data.x is None else data.x.clone(),
        y=None if data.y is None else data.y.clone(),
        splits={name: ids.clone() for name, ids in data.splits.items()},
        extra={name: array.clone() for name, array in data.extra.items()},
        id_map=None if data.id_map is None else copied(data.id_map),
        names={name: copied(path) for name, path in data.names.items()},
    )


def _towns() -> dict[str, Columns]:
    about: dict[str, Any] = {"homophily": 0.8, "signal": 0.6, "splits": (0.2, 0.2, 0.6), "seed": 7}
    data = generate.community(nodes=1200, edges=9600, classes=4, features=6, **about)
    assert data.x is not None
    assert data.y is not None
    src, dst = data.graph.edge_index().numpy()
    part = np.full(data.num_nodes, "train", object)
    for name in ("val", "test"):
        part[data.splits[name].numpy()] = name
    features = {name: _three(column.numpy()) for name, column in zip(_HABITS, data.x.T, strict=True)}
    town = np.array(["Alder", "Birch", "Cedar", "Dogwood"], object)[data.y.numpy()]
    people = {"person": [f"p{node:04}" for node in range(data.num_nodes)], **features, "town": town, "part": part}
    return {
        "knows.csv": {"from": [f"p{node:04}" for node in src], "to": [f"p{node:04}" for node in dst]},
        "people.csv": people,
    }


_HABITS = ("walks", "reads", "swims", "cooks", "sings", "paints")
_WORDS = ("fear", "magic", "dates", "maps")
_RELATIONS = ("part_of", "made_by", "near", "older_than", "used_in", "likes", "opposite_of")


def _facts() -> dict[str, Columns]:
    data = generate.knowledge(nodes=300, edges=9000, relations=7, structure=0.95, splits=(1.0, 0.0, 0.0), seed=7)
    head, relation, tail = np.unique(data.extra["train"].numpy(), axis=0).T
    order = np.argsort(_uniform(11, len(head)), kind="stable")
    return {
        "facts.csv": {
            "head": [f"thing{node:03}" for node in head[order]],
            "relation": [_RELATIONS[number] for number in relation[order]],
            "tail": [f"thing{node:03}" for node in tail[order]],
        }
    }


def _visits() -> dict[str, Columns]:
    """People visit places of their own quarter, mostly, some places more than others; rows in no order of time."""
    count, people, places, quarters = 8000, 200, 60, 6
    who = (people * _uniform(21, count)).astype(np.int64)
    rank = (places // quarters * _uniform(22, count) ** 2).astype(np.int64)
    quarter = np.where(_uniform(23, count) < 0.85, who % quarters, (quarters * _uniform(24, count)).astype(np.int64))
    place = rank * quarters + quarter
    minutes = (90 * 24 * 60 * _uniform(25, count)).astype(np.int64)
    when = np.datetime64("2024-03-01T00:00:00") + minutes * np.timedelta64(60, "s")
    return {
        "visits.csv": {
            "person": who.tolist(),
            "place": [f"place{number:02}" for number in place],
            "when": [str(moment).replace("T", " ") for moment in when],
            "minutes": (10 + 110 * _uniform(26, count)).astype(np.int64).tolist(),
        }
    }


def _library() -> dict[str, Columns]:
    """Readers and authors keep to a genre, mostly; how often some words are in a book tells a little of it."""
    readers, books, authors = 400, 600, 80
    genres = ("crime", "fantasy", "history", "travel")
    genre = (len(genres) * _uniform(31, books)).astype(np.int64)
    part = _uniform(32, books)

    def keeps_to(number: int, own: int, count: int, share: float) -> tuple[Any, Any]:
        """Pairs of somebody whose genre is their number's and a book, of that genre for a share of the pairs."""
        one = (own * _uniform(number, count)).astype(np.int64)
        same = [np.flatnonzero(genre == g) for g in range(len(genres))]
        drawn = zip(one % len(genres), _uniform(number + 1, count), strict=True)
        liked = np.array([same[g][int(u * len(same[g]))] for g, u in drawn])
        chosen = (books * _uniform(number + 2, count)).astype(np.int64)
        return one, np.where(_uniform(number + 3, count) < share, liked, chosen)

    reader, borrowed = keeps_to(40, readers, 4000, 0.75)
    author, written = keeps_to(50, authors, 700, 0.8)
    return {
        "borrows.csv": {"reader": reader.tolist(), "book": [f"b{number:03}" for number in borrowed]},
        "writes.csv": {"author": [f"Author {number}" for number in author], "book": [f"b{number:03}" for number in written]},
        "books.csv": {
            "book": [f"b{number:03}" for number in range(books)],
            **{word: _three(0.6 * (genre == g) + _uniform(60 + g, books)) for g, word in enumerate(_WORDS)},
            "genre": [genres[number] for number in genre],
            "part": np.where(part < 0.3, "train", np.where(part < 0.5, "val", "test")).tolist(),
        },
        "readers.csv": {"reader": list(range(readers)), "visits": _three(3 * _uniform(35, readers))},
    }


def _three(values: Any) -> list[str]:
    """Numbers with three digits after the point."""
    return [f"{value:.3f}" for value in values.tolist()]


def _uniform(seed: int, count: int) -> Any:
    """Numbers from 0 to below 1 that depend on the seed alone."""
    return np.random.Generator(np.random.Philox(seed)).random(count)


EXAMPLES = {
    "towns": Example(
        "people and whom they know: which town does each live in?",
        _towns,
        ("knows.csv",),
        {
            "undirected": True,
            "nodes": ("people.csv",),
            "label_column": "town",
            "split_column": "part",
            "feature_columns": _HABITS,
        },
    ),
    "facts": Example("triples of things and seven relations: which are missing?", _facts, ("facts.csv",), {}),
    "visits": Example(
        "who was where, and when: who will be where?",
        _visits,
        ("person:visits:place=visits.csv",),
        {"time_column": "when"},
    ),
    "library": Example(
        "readers, books and authors: what is the genre of a book?",
        _library,
        ("reader:borrows:book=borrows.csv", "author:writes:book=writes.csv"),
        {
            "header": "yes",
            "undirected": True,
            "nodes": ("book=books.csv", "reader=readers.csv"),
            "label_column": "genre",
            "split_column": "part",
            "feature_columns": (*_WORDS, "visits"),
        },
    ),
}
