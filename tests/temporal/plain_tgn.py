"""TGN on a stream in plain torch: one event list, one loop, no thread; the truth that training is compared with."""

import torch

import headrace as hr
from headrace.nn import event_losses


def plain_losses(stream, end, *, batch_size, neighbors, tgn, negatives, rate, steps):
    """Losses of the first `steps` batches of one epoch by SGD with momentum 0.9, and the memory after them."""
    optimizer = torch.optim.SGD(tgn.parameters(), lr=rate, momentum=0.9)
    memory = torch.zeros(stream.num_nodes, tgn.memory_width)
    mail = torch.zeros(stream.num_nodes, tgn.mail_width)
    mail_time, memory_time, has_mail = {}, {}, set()
    met = [[] for _ in range(stream.num_nodes)]  # (event, other), in order
    losses = []
    for number, begin in enumerate(range(0, end, batch_size)[:steps]):
        last = min(begin + batch_size, end)
        src, dst, time = (values[begin:last].tolist() for values in (stream.src, stream.dst, stream.time))
        drawn = negatives.sample(begin, last, begin, epoch=0, batch=number)
        roots = src + dst + drawn.T.flatten().tolist()
        times = time * (2 + drawn.shape[1])
        indptr, others, dt = [0], [], []
        for node, now in zip(roots, times, strict=True):
            past = [(event, other) for event, other in met[node] if stream.time[event] < now][-neighbors:]
            others += [other for _, other in past]
            dt += [now - int(stream.time[event]) for event, _ in past]
            indptr.append(len(others))
        nodes = sorted(set(roots + others))
        place = {node: row for row, node in enumerate(nodes)}
        start = int(stream.time[0])
        since = torch.tensor([mail_time[n] - memory_time.get(n, start) if n in has_mail else 0 for n in nodes])
        new = tgn.update(memory[nodes], mail[nodes], since, has_mail=torch.tensor([n in has_mail for n in nodes]))
        block = hr.sample.Block(torch.tensor(indptr), torch.arange(len(roots), len(roots) + len(others)), len(roots) + len(others))
        rows = torch.tensor([place[node] for node in roots + others])
        z = tgn.embed(new, [block], torch.tensor(dt, dtype=torch.int64), row_of=rows)
        size = last - begin
        logits = tgn.score(z[:size], z[size:].view(-1, size, z.shape[1]).transpose(0, 1))
        loss = event_losses(logits, "bce").mean()
        losses.append(float(loss.detach()))
        letters = {}
        for event, (a, b) in enumerate(zip(src, dst, strict=True), begin):
            letters[a] = (b, int(stream.time[event]))
            letters[b] = (a, int(stream.time[event]))
        for node, (other, _) in letters.items():
            memory[node] = new[place[node]].detach()
            mail[node] = torch.cat([new[place[node]], new[place[other]]]).detach()
            if node in has_mail:
                memory_time[node] = mail_time[node]
        for node, (_, now) in letters.items():
            mail_time[node] = now
            has_mail.add(node)
        for event, (a, b) in enumerate(zip(src, dst, strict=True), begin):
            met[a].append((event, b))
            if a != b:
                met[b].append((event, a))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, torch.cat([memory, mail], dim=1)
