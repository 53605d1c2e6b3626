"""`TGN` and its parts against modules in plain torch that keep a row per event, and against PyG's, gradients included."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import headrace as hr
from headrace.nn import TGN, EventScores, TimeAttention, TimeEncoding, event_losses
from headrace.sample import Block

EVENTS = [3, 0, 10, 1, 2, 0]  # of the roots: some have none, the last one among them
NODES = 14


@pytest.fixture(autouse=True)
def double():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def block_of(degrees=EVENTS, nodes=NODES):
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return Block(indptr, torch.randint(0, nodes, (int(indptr[-1]),), dtype=torch.int32), nodes)


def times(count):
    return torch.randint(0, 10**6, (count,))


def plain_attention(layer, x, own, block, dt, edge_x=None):
    """`TimeAttention` as the papers write it: keys and values for every event."""
    rows = torch.repeat_interleave(torch.arange(block.num_dst), block.indptr.diff())
    far = [x[block.indices.long()], layer.time(dt)]
    if edge_x is not None:
        far.insert(1, edge_x)
    far = torch.cat(far, 1)
    near = own
    if layer.output == "norm":
        near = torch.cat([own, layer.time(torch.zeros(len(own)))], 1)
    shape = (-1, layer.heads, layer.out_channels // layer.heads)
    query, key, value = layer.w_q(near).view(shape)[rows], layer.w_k(far).view(shape), layer.w_v(far).view(shape)
    score = (query * key).sum(-1)
    score = F.leaky_relu(score, 0.2) if layer.score == "leaky" else score / math.sqrt(shape[2])
    out = torch.zeros(len(own), *shape[1:])
    for row in range(len(own)):
        mine = rows == row
        if mine.any():
            out[row] = (score[mine].softmax(0)[..., None] * value[mine]).sum(0)
    if layer.output == "skip":
        return out.flatten(1) + layer.w_out(own)
    return layer.layer_norm(layer.w_out(torch.cat([out.flatten(1), own], 1)).relu())


def gradients(run, module, *leaves):
    module.zero_grad()
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    out = run(*leaves)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    named = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return {"out": out.detach(), **named, **{f"input {i}": leaf.grad for i, leaf in enumerate(leaves)}}


def assert_equal(found, expected, tolerance=1e-10):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(float(value.abs().max()), 1.0) if value.numel() else 1.0
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("score", ["leaky", "scaled"])
@pytest.mark.parametrize(
    ("output", "channels", "edge", "heads"),
    [("norm", 8, 0, 2), ("skip", 8, 0, 2), ("norm", 7, 5, 1), ("skip", 7, 5, 1), ("norm", 0, 3, 3)],
)
def test_attention_equals_the_papers_formula(score, output, channels, edge, heads):
    block = block_of()
    layer = TimeAttention(channels, 12, time=TimeEncoding(6), edge_channels=edge, heads=heads, score=score, output=output)
    dt, edge_x = times(block.num_edges), torch.randn(block.num_edges, edge) if edge else None
    x, own = torch.randn(NODES, channels), torch.randn(len(EVENTS), channels)
    ours = gradients(lambda x, own: layer(x, own, block.indptr, block.indices, dt, edge_x=edge_x), layer, x, own)
    assert_equal(ours, gradients(lambda x, own: plain_attention(layer, x, own, block, dt, edge_x), layer, x, own))


def test_edge_features_of_a_table_are_those_by_entry():
    block, table = block_of(), torch.randn(40, 5)
    layer = TimeAttention(8, 12, time=TimeEncoding(6), edge_channels=5)
    dt, ids = times(block.num_edges), torch.randint(0, 40, (block.num_edges,))
    x, own = torch.randn(NODES, 8), torch.randn(len(EVENTS), 8)
    by_entry = layer(x, own, block.indptr, block.indices, dt, edge_x=table[ids])
    assert torch.equal(layer(x, own, block.indptr, block.indices, dt, edge_x=table, edge_id=ids), by_entry)


def test_attention_equals_transformer_conv_of_pyg():
    conv_type = pytest.importorskip("torch_geometric.nn", reason="needs torch-geometric").TransformerConv
    block, time = block_of(), TimeEncoding(6)
    conv = conv_type(8, 6, heads=2, edge_dim=5 + 6)
    layer = TimeAttention(8, 12, time=time, edge_channels=5, score="scaled", output="skip")
    with torch.no_grad():
        layer.w_q.load_state_dict(conv.lin_query.state_dict())
        layer.w_out.load_state_dict(conv.lin_skip.state_dict())
        for ours, theirs in ((layer.w_k, conv.lin_key), (layer.w_v, conv.lin_value)):
            ours.weight.copy_(torch.cat([theirs.weight, conv.lin_edge.weight], 1))
            ours.bias.copy_(theirs.bias)
    dt, edge_x, x = times(block.num_edges), torch.randn(block.num_edges, 5), torch.randn(NODES, 8)
    rows = torch.repeat_interleave(torch.arange(block.num_dst), block.indptr.diff())
    edge_index = torch.stack([block.indices.long(), rows])

    def theirs(x):
        return conv(x, edge_index, torch.cat([edge_x, time(dt)], 1))[: block.num_dst]

    def ours(x):
        return layer(x, x[: block.num_dst], block.indptr, block.indices, dt, edge_x=edge_x)

    expected, found = gradients(theirs, conv, x), gradients(ours, layer, x)
    assert_equal({n: found[n] for n in ("out", "input 0")}, {n: expected[n] for n in ("out", "input 0")})
    shared = found["w_k.weight"][:, 8:] + found["w_v.weight"][:, 8:]  # PyG has one map of edges for keys and values
    torch.testing.assert_close(shared, expected["lin_edge.weight"], atol=1e-9, rtol=0)


def test_update_equals_the_memory_of_pyg():
    models = pytest.importorskip("torch_geometric.nn", reason="needs torch-geometric")
    from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator

    nodes, width = 6, 5
    theirs = models.TGNMemory(nodes, 3, width, 4, IdentityMessage(3, width, 4), LastAggregator())
    ours = TGN(memory=width, edge=3, time=4, out=4)
    src, dst, time, edge_x = torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([7, 9]), torch.randn(2, 3)
    with torch.no_grad():
        ours.updater.cell.load_state_dict(theirs.gru.state_dict())
        theirs.time_enc.lin.weight.copy_(ours.time.weight[:, None])
        theirs.time_enc.lin.bias.zero_()
    theirs.update_state(src, dst, time, edge_x)
    theirs.memory.copy_(torch.randn(nodes, width))
    expected, _ = theirs(torch.arange(4))
    own, other = theirs.memory[:4], theirs.memory[torch.tensor([2, 3, 0, 1])]
    mail = torch.cat([own, other], 1)
    found = ours.update(own, mail, time.repeat(2), edge_x.repeat(2, 1))  # memory last changed at time 0
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("form", ["tgn", "dyrep"])
def test_rows_without_mail_keep_their_memory(form):
    model = TGN(form=form, memory=6, time=5, out=6)
    memory, mail, dt = torch.randn(4, 6), torch.randn(4, 12), times(4)
    has_mail = torch.tensor([True, False, True, False])
    changed = model.update(memory, mail, dt, has_mail=has_mail)
    assert torch.equal(changed[1::2], memory[1::2])
    assert torch.equal(changed[::2], model.update(memory, mail, dt)[::2])


def test_a_step_equals_a_plain_module():
    """Memory, static rows of another width, attention with edge features, scores and the softmax loss in one gradient."""
    model = TGN(memory=8, static=3, edge=4, time=6, out=10)
    plain = copy.deepcopy(model)
    block = block_of([2, 3, 0, 4, 1, 2])
    memory, static, mail = torch.randn(9, 8), torch.randn(9, 3), torch.randn(9, 16)
    mail_x, mail_dt, row_of = torch.randn(9, 4), times(9), torch.randint(0, 9, (NODES,))
    dt, edge_x = times(block.num_edges), torch.randn(block.num_edges, 4)

    def ours():
        rows = model.update(memory, mail, mail_dt, mail_x)
        z = model.embed(rows, [block], dt, edge_x=edge_x, static=static, row_of=row_of)
        return event_losses(model.score(z[:2], z[2:].view(2, 2, -1)))

    def theirs():
        rows = plain.updater.cell(torch.cat([mail, mail_x, plain.time(mail_dt)], 1), memory) + plain.static_map(static)
        rows = rows[row_of]
        z = plain_attention(plain.layers[0], rows, rows[:6], block, dt, edge_x)
        pairs = plain.decoder.src_fc(z[:2])[:, None] + plain.decoder.dst_fc(z[2:]).view(2, 2, -1)
        logits = plain.decoder.out_fc(pairs.relu()).squeeze(-1)
        return F.cross_entropy(logits, torch.zeros(2, dtype=torch.long), reduction="none")

    assert_equal(gradients(ours, model), gradients(theirs, plain))


def test_tgat_is_two_layers_over_static_rows():
    model = TGN(form="tgat", static=5, time=6, out=8)
    outer, inner = block_of([2, 1, 3, 0, 2], 9), block_of([2, 0], 5)
    dt, static = times(outer.num_edges), torch.randn(9, 5)
    found = model.embed(None, [inner, outer], dt, static=static)
    first = plain_attention(model.layers[0], static, static[:5], outer, dt)
    expected = plain_attention(model.layers[1], first, first[:2], inner, dt[: inner.num_edges])
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    bare = TGN(form="tgat", time=6, out=8)  # without any rows there are times alone
    assert bare.embed(None, [inner, outer], dt).shape == (2, 8)
    assert bare.mail_width == bare.memory_width == 0
    assert bare.hops == 2


def test_jodie_moves_memory_on_by_its_age():
    model = TGN(form="jodie", memory=6, time=5, out=6, age_mean=50.0, age_std=20.0)
    memory, mail, dt, age, row_of = torch.randn(4, 6), torch.randn(4, 12), times(4), times(3), torch.tensor([2, 0, 2])
    rows = model.update(memory, mail, dt)
    cell = model.updater.cell
    assert isinstance(cell, nn.RNNCell)
    expected = torch.tanh(
        F.linear(torch.cat([mail, model.time(dt)], 1), cell.weight_ih, cell.bias_ih)
        + F.linear(memory, cell.weight_hh, cell.bias_hh)
    )
    torch.testing.assert_close(rows, expected)
    found = model.embed(rows, (), row_of=row_of, age=age)
    torch.testing.assert_close(found, rows[row_of] * (1 + ((age - 50.0) / 20.0)[:, None] * model.age_weight))
    assert model.hops == 0
    with pytest.raises(ValueError, match="needs age, one per root: 4"):
        model.embed(rows, ())


def test_mail_has_both_ends_and_no_gradient():
    tgn, dyrep = TGN(memory=4, time=3, out=4), TGN(form="dyrep", memory=4, time=3, out=6)
    src, dst = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    to_src, to_dst = tgn.mail(src, dst)
    assert torch.equal(to_src, torch.cat([src, dst], 1))
    assert torch.equal(to_dst, torch.cat([dst, src], 1))
    assert not to_src.requires_grad
    assert tgn.mail_width == 8
    assert dyrep.mail_width == 10
    z_src, z_dst = torch.randn(3, 6), torch.randn(3, 6)
    to_src, to_dst = dyrep.mail(src, dst, z_src=z_src, z_dst=z_dst)
    assert torch.equal(to_src, torch.cat([src, z_dst], 1))
    assert torch.equal(to_dst, torch.cat([dst, z_src], 1))
    with pytest.raises(ValueError, match="pass z_src and z_dst"):
        dyrep.mail(src, dst)


def test_rows_of_padding_are_inert():
    model = TGN(memory=8, time=6, out=8)
    block, dt, memory = block_of(), times(sum(EVENTS)), torch.randn(NODES, 8)
    room = torch.zeros(5, dtype=torch.int32)
    padded = Block(torch.cat([block.indptr, block.indptr[-1:].expand(3)]), torch.cat([block.indices, room]), NODES + 4)
    found = {}
    for name, rows, where, ages in (
        ("exact", memory, block, dt),
        ("padded", torch.cat([memory, torch.zeros(4, 8)]), padded, torch.cat([dt, room.long()])),
    ):
        model.zero_grad()
        z = model.embed(rows.requires_grad_(), [where], ages)[: len(EVENTS)]
        z.square().sum().backward()
        found[name] = {"z": z.detach(), **{name: p.grad.clone() for name, p in model.layers.named_parameters()}}
    assert_equal(found["padded"], found["exact"])


def test_time_encoding_begins_as_in_the_papers_and_takes_differences_of_any_size():
    encoding = TimeEncoding(10)
    torch.testing.assert_close(encoding.weight.detach(), 10.0 ** -torch.arange(10))
    assert torch.equal(encoding.bias, torch.zeros(10))
    late = torch.tensor([2**53 + 3]) - torch.tensor([2**53])  # in float64 alone, both would be rounded
    torch.testing.assert_close(encoding(late), encoding(torch.tensor([3])))


def test_losses_are_those_of_torch():
    logits = torch.randn(5, 4)
    expected = F.cross_entropy(logits, torch.zeros(5, dtype=torch.long), reduction="none")
    torch.testing.assert_close(event_losses(logits, "softmax"), expected)
    labels = torch.zeros(5, 4)
    labels[:, 0] = 1
    each = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    torch.testing.assert_close(event_losses(logits, "bce"), each[:, 0] + each[:, 1:].mean(1))


def test_scores_of_several_destinations_are_those_of_each():
    decoder, z_src, z_dst = EventScores(6), torch.randn(4, 6), torch.randn(4, 3, 6)
    torch.testing.assert_close(decoder(z_src, z_dst), torch.stack([decoder(z_src, z_dst[:, k]) for k in range(3)], 1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"form": "gcn"}, "form must be one of tgn, jodie, dyrep, tgat, not 'gcn'"),
        ({"memory": 0}, "memory and out must be at least 1"),
        ({"heads": 3}, "multiple of heads"),
        ({"score": "cosine"}, '"leaky" or "scaled"'),
        ({"form": "tgat", "output": "skip"}, "in_channels must be at least 1"),
        ({"form": "jodie", "out": 50}, "out be 100, not None and 50"),
        ({"age_std": 0.0}, "age_std must be above 0"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        TGN(**settings)


def test_rows_of_wrong_shapes_are_named():
    model = TGN(memory=4, edge=2, time=3, out=4)
    with pytest.raises(ValueError, match="edge_x is missing"):
        model.update(torch.zeros(3, 4), torch.zeros(3, 8), torch.zeros(3))
    with pytest.raises(ValueError, match=r"mail must be \[3, 8\]"):
        model.update(torch.zeros(3, 4), torch.zeros(3, 7), torch.zeros(3), torch.zeros(3, 2))
    block = block_of([2, 1], 3)
    with pytest.raises(ValueError, match="1 layers, a block each, but was given 2"):
        model.embed(torch.zeros(3, 4), [block, block], torch.zeros(3))
    with pytest.raises(ValueError, match="edge_channels=2"):
        model.embed(torch.zeros(3, 4), [block], torch.zeros(3))
    assert hr.nn.TGN is TGN
