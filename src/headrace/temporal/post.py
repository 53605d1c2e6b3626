"""`Post`: processes of one machine tell each other whose ticket is next. Each sleeps until it is told."""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

from headrace.pipeline.workers import Workers
from headrace.ranks import RankGoneError, Ranks
from headrace.temporal.schedule import Schedule
from headrace.temporal.tickets import Tickets

_KEY = 16
_WORD = struct.Struct("=qqq")  # copy, count, ticket


class Post:
    """Datagrams between sockets in Linux' abstract namespace: no file that a killed process could leave, no thread that polls.

    What comes is taken only with a key that the ranks have agreed on, since any process of the machine may send to such a socket.
    All ranks build it together.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(b"\0headrace-" + secrets.token_hex(16).encode())
        told = ranks.all_gather((self._socket.getsockname(), secrets.token_bytes(_KEY)))
        self._addresses, self._key = [address for address, _ in told], told[0][1]
        self._tickets: dict[int, Tickets] = {}
        self._closed = False
        self._workers = Workers("the post of node memory", self._stop)
        self._rank = ranks.rank

    def start(self, tickets: dict[int, Tickets]) -> None:
        """Hand what comes to the tickets of its copy. Once all ranks have built theirs, before any begins to count."""
        self._tickets = tickets
        self._workers.start(self._serve, name="headrace post")

    def send(self, rank: int, copy: int, count: int, ticket: int) -> None:
        """Tell `rank` that all before `ticket` is done; RankGoneError if it has ended."""
        try:
            self._socket.sendto(self._key + _WORD.pack(copy, count, ticket), self._addresses[rank])
        except (ConnectionRefusedError, FileNotFoundError):
            raise RankGoneError(f"rank {rank} is gone, whose ticket {ticket} of node memory {copy} would be next") from None

    def close(self) -> None:
        if not self._closed and not self._workers.elsewhere:
            self._stop()
            self._workers.join()
            self._socket.close()

    def _stop(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._socket.sendto(b"", self._addresses[self._rank])

    def _serve(self) -> None:
        while not self._closed:
            message = self._socket.recv(256)
            if len(message) == _KEY + _WORD.size and secrets.compare_digest(message[:_KEY], self._key):
                copy, count, ticket = _WORD.unpack(message[_KEY:])
                self._tickets[copy].turn(count, ticket)


class OtherTrainers:
    """The tickets of one copy that are other ranks', by the schedule. `owners`: the rank of each trainer."""

    def __init__(self, schedule: Schedule, copy: int, owners: Sequence[int], rank: int, post: Post) -> None:
        self.schedule, self.copy, self.owners, self.rank, self.post = schedule, copy, owners, rank, post

    def owner(self, ticket: int) -> int:
        """The rank that has a ticket. Tickets count on from one sweep to the next."""
        return self.owners[self.schedule.holder(self.copy, ticket % (2 * self.schedule.batches)).trainer]

    def has(self, ticket: int) -> bool:
        return self.owner(ticket) != self.rank

    def pass_on(self, count: int, ticket: int) -> None:
        self.post.send(self.owner(ticket), self.copy, count, ticket)

    def told(self, ticket: int) -> str:
        """A ticket in words."""
        holder = self.schedule.holder(self.copy, ticket % (2 * self.schedule.batches))
        owner = self.owners[holder.trainer]
        return (
            f"The next ticket of node memory {self.copy} is {ticket}, rank {owner}'s ({holder.operation} of batch {holder.batch})"
        )
