"""A stream on disk is trained on from there: the process holds the node memory, and little else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from headrace.graph import open_dataset

CHILD = Path(__file__).parents[1] / "stream_memory_child.py"
GENERATE = "import sys, headrace as hr; hr.generate.events(int(sys.argv[2]), int(sys.argv[3]), threads=2).save(sys.argv[1])"


def ran(*command):
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_500_batches_from_the_middle_of_20_million_events(tmp_path):
    folder = tmp_path / "events"
    ran("-c", GENERATE, folder, 1_000_000, 20_000_000)  # in a process of its own, whose memory is not measured
    facts = json.loads(ran(CHILD, folder, 500))
    assert facts["events"] == 100_000
    assert facts["edges"] == 40_000_000
    assert facts["most"] <= facts["memory"] + (1 << 30)


def test_the_graph_of_a_saved_stream_is_mapped_and_not_made_again(tmp_path):
    data = hr.generate.events(nodes=200, events=3000, seed=2)
    data.save(tmp_path / "events")
    opened = open_dataset(tmp_path / "events")
    stream = hr.EventStream.of(opened)
    assert stream.graph() is opened.graph
    assert stream.graph().indices.tolist() == data.graph.indices.tolist()
