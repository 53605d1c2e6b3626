"""Formulas of the bytes that a rank sends: their figures, and `parallel auto`, which follows them. No network is needed."""

import pytest
import torch

import headrace as hr
from headrace.cluster.traffic import Block, break_even, fetched, pulled, pulled_by, structure_bytes, summed
from headrace.train import NodeOptions
from headrace.train.nodes.node import make_model
from headrace.train.nodes.over_ranks.parallel import cheaper, hit_rate, mean_block

BLOCK = Block(num_src=26_429, num_dst=4_126, edges=37_402)  # a batch of 512 with fanout 15,10 of 200,000 nodes, on average
RANKS = 4


@pytest.mark.parametrize(("features", "hidden", "rows", "sums"), [(768, 64, 61.0, 7.2), (100, 256, 8.0, 26.2)])
def test_megabytes_of_rows_and_of_sums(features, hidden, rows, sums):
    pushed = structure_bytes(BLOCK)
    assert round(fetched(BLOCK, ranks=RANKS, features=features) / 1e6, 1) == rows
    assert round(pulled(BLOCK.num_dst * hidden, team=RANKS, structure=pushed) / 1e6, 1) == sums


@pytest.mark.parametrize(("features", "width"), [(768, 607), (100, 73)])
def test_widths_at_which_both_send_the_same(features, width):
    even = break_even(BLOCK, ranks=RANKS, features=features, structure=structure_bytes(BLOCK))
    assert round(even) == width
    sums = pulled(BLOCK.num_dst * even, team=RANKS, structure=structure_bytes(BLOCK))
    assert sums == pytest.approx(fetched(BLOCK, ranks=RANKS, features=features))


def test_push_pull_sends_the_same_for_all_widths_of_features():
    layers = [hr.nn.GNN(features, 64, 16, layers=2).layers[0] for features in (100, 768)]
    few, many = (pulled_by(layer.split(), BLOCK, team=RANKS) for layer in layers)
    assert few == many == pulled(BLOCK.num_dst * 64, team=RANKS)


def test_copies_lower_what_is_fetched_and_the_width_at_which_push_pull_wins():
    whole, half = (fetched(BLOCK, ranks=RANKS, features=100, hit_rate=rate) for rate in (0.0, 0.5))
    assert whole - half == pytest.approx(half, rel=1e-5)  # but for the counts
    assert break_even(BLOCK, ranks=RANKS, features=100, hit_rate=0.5) < break_even(BLOCK, ranks=RANKS, features=100)


def test_one_rank_sends_nothing():
    assert fetched(BLOCK, ranks=1, features=100) == pulled(1000, team=1, structure=500) == summed(1000, ranks=1) == 0


def test_scores_of_attention_are_sent_four_times():
    layer = hr.nn.GNN(100, 64, 16, layers=2, conv="gat", heads=4).layers[0]
    scores = 4 * (BLOCK.num_src + BLOCK.num_dst)
    assert pulled_by(layer.split(), BLOCK, team=2) == pulled(BLOCK.num_dst * 64, team=2) + 4 * 4 * scores


def test_mean_of_blocks():
    assert Block.mean([Block(1, 2, 3), Block(3, 2, 5)]) == Block(2, 2, 4)
    assert Block.mean([]) == Block(0, 0, 0)


@pytest.mark.parametrize("features", [100, 768])
@pytest.mark.parametrize("replicate", ["0%", "20%"])
def test_auto_chooses_the_other_way_where_the_formula_says(features, replicate):
    data = hr.generate.community(nodes=5000, edges=75_000, classes=16, features=8, seed=1)
    data.x = torch.empty(1).expand(data.num_nodes, features)  # of which only the width is looked at

    def chosen(hidden):
        options = NodeOptions(fanout=(15, 10), batch_size=128, hidden=hidden, share="ranks", replicate=replicate)
        return cheaper(data, make_model(data, options), options, RANKS)[0]

    options = NodeOptions(fanout=(15, 10), batch_size=128, share="ranks", replicate=replicate)
    even = break_even(mean_block(data, options), ranks=RANKS, features=features, hit_rate=hit_rate(data, options))
    assert even > 20
    assert chosen(int(0.95 * even)) == "push_pull"
    assert chosen(int(1.05 * even) + 1) == "data"
