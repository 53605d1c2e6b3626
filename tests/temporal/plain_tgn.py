"""TGN on a stream in plain torch: one event list, one loop, no thread, no kernel; the truth that training is compared with."""

import math
from bisect import bisect_left

import torch
import torch.nn.functional as F


class PlainTGN:
    """The formulas of TGN, JODIE and DyRep with the weights of `tgn`, each root's events apart and a row for every event."""

    def __init__(self, tgn):
        self.weights, self.form, self.memory_width, self.mail_width = tgn, tgn.form, tgn.memory_width, tgn.mail_width
        self.hops = tgn.hops

    def phi(self, dt):
        return (self.weights.time.weight * torch.tensor(dt).float()[:, None] + self.weights.time.bias).cos()

    def update(self, memory, mail, since, has_mail, mail_x):
        """The cell's equations for nodes with mail."""
        cell = self.weights.updater.cell
        given = torch.cat([mail, *([] if mail_x is None else [mail_x]), self.phi(since)], 1)
        inputs, states = given @ cell.weight_ih.t() + cell.bias_ih, memory @ cell.weight_hh.t() + cell.bias_hh
        if self.form == "tgn":
            (r, z, n), (hr, hz, hn) = inputs.chunk(3, 1), states.chunk(3, 1)
            z, n = (z + hz).sigmoid(), (n + (r + hr).sigmoid() * hn).tanh()
            new = (1 - z) * n + z * memory
        else:
            new = (inputs + states).tanh()
        return torch.where(torch.tensor(has_mail)[:, None], new, memory)

    def embed(self, roots, rows, events_of, edge_x, depth):
        """Roots (node, time, the place of the stream before which it sees) by their last events.  # -> [roots, out]"""
        if depth == 0:
            return torch.stack([rows(node) for node, *_ in roots])
        layer = self.weights.layers[depth - 1]
        own = self.embed(roots, rows, events_of, edge_x, depth - 1)
        past = [
            events_of(node, bound) for node, _, bound in roots
        ]  # (event, other, its time, the place before which the other sees)
        counts, all_past = [len(events) for events in past], [event for events in past for event in events]
        near = own if layer.output == "skip" else torch.cat([own, self.phi([0] * len(roots))], 1)
        shape = (layer.heads, layer.out_channels // layer.heads)
        queries = (near @ layer.w_q.weight.t() + layer.w_q.bias).view(-1, *shape)
        total = torch.zeros(len(roots), *shape)
        if all_past:
            parts = [self.embed([(other, *seen) for _, other, *seen in all_past], rows, events_of, edge_x, depth - 1)]
            parts += [] if edge_x is None else [edge_x[[event for event, *_ in all_past]]]
            ages = [now - time for (_, now, _), events in zip(roots, past, strict=True) for _, _, time, _ in events]
            far = torch.cat([*parts, self.phi(ages)], 1)
            keys, values = ((far @ w.weight.t() + w.bias).view(-1, *shape).split(counts) for w in (layer.w_k, layer.w_v))
            sums = []
            for query, key, value in zip(queries, keys, values, strict=True):
                score = (query * key).sum(2)
                score = F.leaky_relu(score, 0.2) if layer.score == "leaky" else score / math.sqrt(shape[1])
                sums.append((score.softmax(0)[:, :, None] * value).sum(0))  # zeros where there are no events
            total = torch.stack(sums)
        if layer.output == "skip":
            return total.flatten(1) + own @ layer.w_out.weight.t() + layer.w_out.bias
        out = (torch.cat([total.flatten(1), own], 1) @ layer.w_out.weight.t() + layer.w_out.bias).relu()
        return F.layer_norm(out, out.shape[1:], layer.layer_norm.weight, layer.layer_norm.bias, layer.layer_norm.eps)

    def moved_on(self, row, age):
        """JODIE's embedding."""
        return row * (1 + (age - self.weights.age_mean) / self.weights.age_std * self.weights.age_weight)

    def score(self, z_src, z_dst):
        d = self.weights.decoder
        pairs = z_src @ d.src_fc.weight.t() + d.src_fc.bias + z_dst @ d.dst_fc.weight.t() + d.dst_fc.bias
        return (pairs.relu() @ d.out_fc.weight.t() + d.out_fc.bias)[..., 0]


def plain_losses(stream, end, *, batch_size, neighbors, tgn, negatives, rate, steps, in_batch="hidden", cuts=None):
    """Losses of the first `steps` batches of one epoch by SGD with momentum 0.9, and the memory after them."""
    optimizer, plain = torch.optim.SGD(tgn.parameters(), lr=rate, momentum=0.9), PlainTGN(tgn)
    memory = torch.zeros(stream.num_nodes, plain.memory_width)
    mail = torch.zeros(stream.num_nodes, plain.mail_width)
    mail_event, memory_time = {}, {}
    times = stream.time.tolist()
    met = [[] for _ in range(stream.num_nodes)]  # (event, other), in order
    for event, (a, b) in enumerate(zip(stream.src.tolist(), stream.dst.tolist(), strict=True)):
        met[a].append((event, b))
        if a != b:
            met[b].append((event, a))
    starts = list(range(0, end, batch_size)) if cuts is None else cuts[:-1]
    losses = []
    for number, begin in enumerate(starts[:steps]):
        last = [*starts, end][number + 1]
        src, dst, now = stream.src[begin:last].tolist(), stream.dst[begin:last].tolist(), times[begin:last]
        drawn = negatives.sample(begin, last, begin, epoch=0, batch=number)
        roots, when = src + dst + drawn.T.flatten().tolist(), now * (2 + drawn.shape[1])
        new = {}

        def rows(node, begin=begin, new=new):
            """Memory after the mail of earlier batches."""
            if node not in new:
                own = mail_event.get(node)
                since = [0 if own is None else times[own] - memory_time.get(node, times[0])]
                x = None if stream.edge_x is None else stream.edge_x[[own or 0]]
                new[node] = plain.update(memory[[node]], mail[[node]], since, [own is not None], x)[0]
            return new[node]

        def events_of(node, bound):
            past = [(event, other) for event, other in met[node] if event < bound][-neighbors:]
            return [(event, other, times[event], bisect_left(times, times[event])) for event, other in past]

        bounds = [bisect_left(times, time) for time in when]  # strictly before its time
        bounds = [min(bound, begin) for bound in bounds] if in_batch == "hidden" else bounds
        if plain.hops:
            z = plain.embed(list(zip(roots, when, bounds, strict=True)), rows, events_of, stream.edge_x, plain.hops)
        else:
            known = [times[mail_event.get(root, 0)] for root in roots]
            z = torch.stack([plain.moved_on(rows(n), now - then) for n, now, then in zip(roots, when, known, strict=True)])
        size = last - begin
        logits = plain.score(z[:size, None], z[size:].view(-1, size, z.shape[1]).transpose(0, 1))
        loss = (F.softplus(-logits[:, 0]) + F.softplus(logits[:, 1:]).mean(1)).mean()
        losses.append(float(loss.detach()))
        letters = {}
        for event, (a, b) in enumerate(zip(src, dst, strict=True)):
            letters[a] = event, b, z[size + event]
            letters[b] = event, a, z[event] if a != b else z[size + event]
        if plain.form != "dyrep":
            letters = {node: (event, other, rows(other)) for node, (event, other, _) in letters.items()}
        for node in letters:
            memory[node] = rows(node).detach()
        for node, (event, _, other) in letters.items():
            mail[node] = torch.cat([rows(node), other]).detach()
            if node in mail_event:
                memory_time[node] = times[mail_event[node]]
            mail_event[node] = begin + event
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, torch.cat([memory, mail], dim=1)
