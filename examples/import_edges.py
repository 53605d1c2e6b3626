"""Import a CSV edge list with names for ids, open the dataset, and join a result back to the names."""

import tempfile
from pathlib import Path

import pyarrow.parquet as pq

import headrace as hr
from headrace.graph.ingest import IngestOptions, ingest

EDGES = """\
from,to,strength
ada,grace,1.5
grace,edsger,0.5
edsger,ada,2
barbara,ada,1
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        edges = Path(folder) / "edges.csv"
        edges.write_text(EDGES)
        output = Path(folder) / "people"
        report = ingest(IngestOptions(edges=(edges,), output=output, weight_column="strength", memory="1GiB"))
        print(f"imported {report.rows} rows, {report.bad_rows} bad")

        data = hr.open(output)
        print(data)

        names = pq.read_table(data.id_map).column("id").to_pylist()
        for node, degree in enumerate(data.graph.degrees().tolist()):
            print(f"{names[node]:>8} has {degree} incoming: {[names[n] for n in data.graph.neighbors(node).tolist()]}")


if __name__ == "__main__":
    main()
