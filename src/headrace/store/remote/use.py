"""What a store over several ranks was asked for, and what that cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteUse:
    """What was asked for and what it cost: ids by where their rows were found, bytes to and from other ranks, seconds.

    `requests` = `local` + `replica` + `remote` ids were gathered in `exchanges` exchanges (those of `finish` and `add_` count
    too). `waited`: seconds that callers stood in `gather` or `wait`. `peak`: the most exchanges that were under way at a time.
    """

    requests: int
    local: int
    replica: int
    remote: int
    added: int
    exchanges: int
    counts_sent: int
    counts_received: int
    ids_sent: int
    ids_received: int
    rows_sent: int
    rows_received: int
    waited: float
    peak: int

    @property
    def bytes_sent(self) -> int:
        return self.counts_sent + self.ids_sent + self.rows_sent

    @property
    def bytes_received(self) -> int:
        return self.counts_received + self.ids_received + self.rows_received
