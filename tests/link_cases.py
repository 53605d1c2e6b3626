"""What tests of link prediction share."""

from headrace.train import Watcher


class Losses(Watcher):
    """Keeps what a run says: the loss of every step, and the facts of every epoch."""

    def __init__(self):
        self.seen, self.epochs = [], []

    def step(self, event, clock):
        self.seen.append(event.loss)

    def epoch(self, facts):
        self.epochs.append(facts)
