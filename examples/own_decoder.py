"""A decoder of your own: SimplE (Kazemi and Poole, NeurIPS 2018), trained beside DistMult on a generated knowledge graph.

Every node has a row for when it is a head and one for when it is a tail; every relation has one for each direction:

    score(h, r, t) = <h_head * r, t_tail> + <h_tail * r_inverse, t_head>

A decoder joins one end of an edge with its relation to a query, whose product with a candidate's row is the score.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor

import headrace as hr


@hr.nn.register_decoder
class SimplE(hr.nn.Decoder):
    """Rows hold the half for heads, then the half for tails; relations that of the edge, then that of its inverse."""

    name = "simple"

    def join(self, rows: Tensor, parameters: Tensor, inverse: bool) -> Tensor:
        as_head, as_tail = rows.chunk(2, dim=-1)
        forward, backward = parameters.chunk(2, dim=-1)
        if inverse:  # rows are those of tails: which heads?
            return torch.cat([as_tail * forward, as_head * backward], dim=-1)
        return torch.cat([as_tail * backward, as_head * forward], dim=-1)


# Both questions give one edge the same score, and products are what the loss may share.
decoder = SimplE(8, relations=3)
decoder.reset_parameters(1.0)
head, tail, relation = torch.randn(5, 8), torch.randn(5, 8), torch.tensor([0, 1, 2, 0, 1])
to_tail, to_head = decoder.queries(head, relation, tail)
torch.testing.assert_close(decoder.compare(to_tail, tail), decoder.compare(to_head, head))
assert SimplE.by_product

data = hr.generate.knowledge(nodes=300, edges=6000, relations=4)
sizes = {"dim": 32, "epochs": 10, "batch_size": 200, "negatives": 50, "init": 0.1}
with tempfile.TemporaryDirectory() as folder:
    for name in ("distmult", SimplE.name):
        run = Path(folder) / name
        result = hr.train.link(data, hr.train.LinkOptions(decoder=name, **sizes), out=run)
        print(f"{name}: test MRR {result.test['mrr']:.3f}, Hits@10 {result.test['hits@10']:.3f}")
    # The run records the decoder's name, so whatever opens it later scores with SimplE.
    nearest = hr.train.neighbors(run, "0", relation="1", k=3)
    print("likeliest tails of node 0 by relation 1:", [likely.node for likely in nearest.tails])
