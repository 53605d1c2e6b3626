"""Ranks that were started with other data, options, versions or parts: an error on all of them before the first step."""

import json

import pytest

import disagreement_child
from headrace.cluster import partition
from rank_jobs import Job

RANKS = 2
ALIKE = "Start all ranks with the same command, version and data"
SAID = {
    "data": ["ranks disagree on the data (fingerprint): rank 0 has", "rank 1 has", ALIKE],
    "fewer classes": ["ranks disagree on the data (", ALIKE],
    "option": ["ranks disagree on the option lr: rank 0 has 0.01, rank 1 has 0.02", ALIKE],
    "delay": ["ranks disagree on the option versions: rank 0 has flush, rank 1 has stash", ALIKE],
    "wire": ["ranks disagree on the option wire: rank 0 has fp32, rank 1 has bf16", ALIKE],
    "version": ["ranks disagree on the version of headrace: rank 0 has", ALIKE],
    "partition": ["rank 1 has a part of another partition than rank 0: copy the parts of one partition"],
    "kind of partition": ["rank 1 has a part of another partition than rank 0: copy the parts of one partition"],
    "number of a part": ["rank 1 has part 0: give every rank the part of its own number"],
    "parts of more ranks": ["cut into 3 parts, and there are 2 ranks: start 3 of them"],
    "columns": ["1 columns of features cannot be cut into 2 slices"],
    "double_buffer": ["accumulate 5 makes 2 for each of 2 ranks: use accumulate 6 or more, or versions stash"],
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disagreement")
    for name, how in (("hash", {}), ("ldg", {"by": "ldg"}), ("columns", {"columns": True}), ("three", {"parts": 3})):
        partition(disagreement_child.dataset(), folder / name, **{"parts": RANKS, **how})
    job = Job(disagreement_child.__file__, [folder], size=RANKS, folder=folder)
    try:
        assert job.wait(90) == [0] * RANKS, "\n".join(job.said(rank) for rank in range(RANKS))
    finally:
        job.end()
    return [json.loads((folder / f"said.{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("case", SAID)
def test_all_ranks_say_what_differs_before_the_first_step(told, case):
    for by_rank in told:
        for words in SAID[case]:
            assert words in by_rank[case]
