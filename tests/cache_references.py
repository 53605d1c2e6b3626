"""Cache policies in plain Python, as their papers put them, and Belady's rule by looking at the whole trace.

Of a batch the ids that are there come first, and what it uses (`busy`) is passed over; with batches of one id neither shows, and
they are the textbook's.
"""

from collections import OrderedDict, deque
from itertools import combinations


class Reference:
    """Ids in, (hits per id, evicted ids) out. Subclasses say what a hit does and who goes."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.busy = set()

    def batch(self, ids):
        hits, evicted = [node in self for node in ids], []
        here = [node for node in ids if node in self]
        for node in here:
            self.hit(node)
        self.busy, bypassed = set(here), set()
        for at, node in enumerate(ids):
            if hits[at]:
                continue
            if node in self:  # came in a moment ago
                hits[at] = True
                self.hit(node)
            elif node not in bypassed:
                if len(self) == self.capacity:
                    if all(other in self.busy for other in self.nodes()):
                        bypassed.add(node)
                        continue
                    evicted.append(self.evict())
                self.insert(node)
                self.busy.add(node)
        return hits, evicted

    def __contains__(self, node):
        return node in self.rows

    def __len__(self):
        return len(self.rows)

    def nodes(self):
        return list(self.rows)


class Lru(Reference):
    def __init__(self, capacity):
        super().__init__(capacity)
        self.rows = OrderedDict()

    def hit(self, node):
        self.rows.move_to_end(node)

    def insert(self, node):
        self.rows[node] = True

    def evict(self):
        victim = next(node for node in self.rows if node not in self.busy)
        del self.rows[victim]
        return victim


class Clock(Reference):
    """Frames in a ring; a page takes the frame of the one it replaces."""

    def __init__(self, capacity):
        super().__init__(capacity)
        self.frames, self.rows, self.hand = [], {}, 0

    def hit(self, node):
        self.rows[node] = True

    def insert(self, node):
        if len(self.frames) < self.capacity:
            self.frames.append(node)
        else:
            self.frames[self.hole] = node
        self.rows[node] = False

    def evict(self):
        while True:
            at, self.hand = self.hand, (self.hand + 1) % self.capacity
            node = self.frames[at]
            if self.rows[node]:
                self.rows[node] = False
            elif node not in self.busy:
                self.hole = at
                del self.rows[node]
                return node


class Sieve(Reference):
    """A list from the oldest to the newest, and a hand that stays where it stopped."""

    def __init__(self, capacity):
        super().__init__(capacity)
        self.order, self.rows, self.hand = [], {}, None

    def hit(self, node):
        self.rows[node] = True

    def insert(self, node):
        self.order.append(node)
        self.rows[node] = False

    def evict(self):
        at = 0 if self.hand is None else self.order.index(self.hand)
        while self.rows[self.order[at]] or self.order[at] in self.busy:
            self.rows[self.order[at]] = False
            at = (at + 1) % len(self.order)
        self.hand = self.order[at + 1] if at + 1 < len(self.order) else None
        victim = self.order.pop(at)
        del self.rows[victim]
        return victim


class S3Fifo(Reference):
    """Small queue, main queue, ghosts; newest on the left."""

    def __init__(self, capacity):
        super().__init__(capacity)
        self.small_size = max(1, capacity // 10)
        self.small, self.main, self.rows = deque(), deque(), {}
        self.ghosts = deque(maxlen=capacity - self.small_size)

    def hit(self, node):
        self.rows[node] = min(self.rows[node] + 1, 3)

    def insert(self, node):
        if node in self.ghosts:
            self.ghosts[self.ghosts.index(node)] = None  # its place stays taken: a ghost's age is counted in ghosts made
            self.main.appendleft(node)
        else:
            self.small.appendleft(node)
        self.rows[node] = 0

    def evict(self):
        while True:
            small = len(self.small) >= self.small_size
            if all(node in self.busy for node in (self.small if small else self.main)):
                small = not small
            queue = self.small if small else self.main
            node = queue.pop()
            if small and self.rows[node] > 1:
                self.main.appendleft(node)
                self.rows[node] = 0
            elif not small and self.rows[node] > 0:
                self.main.appendleft(node)
                self.rows[node] -= 1
            elif node in self.busy:
                queue.appendleft(node)
            else:
                if small:
                    self.ghosts.append(node)
                del self.rows[node]
                return node


REFERENCES = {"lru": Lru, "clock": Clock, "sieve": Sieve, "s3fifo": S3Fifo}


def belady_misses(batches, capacity):
    """Distinct misses of every batch if, after each, the rows used soonest stay; what is used no more does not."""
    uses = {}
    for t, batch in enumerate(batches):
        for node in batch:
            uses.setdefault(node, []).append(t)

    def next_use(node, now):
        return next((t for t in uses[node] if t > now), None)

    held, misses = set(), []
    for now, batch in enumerate(batches):
        misses.append(len(set(batch) - held))
        coming = {node: next_use(node, now) for node in held | set(batch)}
        held = sorted((node for node, t in coming.items() if t is not None), key=lambda node: (coming[node], node))
        held = set(held[:capacity])
    return misses


def fewest_misses(batches, capacity):
    """The best any cache of this size can do, by trying all of them."""
    reached = {frozenset(): 0}
    for batch in batches:
        after = {}
        for held, misses in reached.items():
            cost = misses + len(set(batch) - held)
            there = sorted(held | set(batch))
            for size in range(min(capacity, len(there)) + 1):
                for kept in combinations(there, size):
                    after[frozenset(kept)] = min(cost, after.get(frozenset(kept), cost))
        reached = after
    return min(reached.values())
