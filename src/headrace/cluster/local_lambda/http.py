"""A server of HTTP on loopback, a thread per connection."""

from __future__ import annotations

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class LoopbackServer(ThreadingHTTPServer):
    """Listens on 127.0.0.1, in a thread of its own, until `close`."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, handler: type[LoopbackHandler], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self._thread = Thread(target=self.serve_forever, args=(0.05,), name="headrace.local_lambda", daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        """Address and port."""
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client went away."""

    def close(self) -> None:
        """Listen no more."""
        self.shutdown()
        self.server_close()


class LoopbackHandler(BaseHTTPRequestHandler):
    """Keeps connections, and sends small answers at once."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""

    def body(self) -> bytes:
        """The body of the request."""
        return self.rfile.read(self.size())

    def size(self) -> int:
        """How many bytes were sent."""
        length = self.headers.get("Content-Length", "0")
        return int(length) if length.isdecimal() else 0

    def discard_body(self) -> None:
        """Read what was sent and forget it, so that the client gets to read the answer."""
        left = self.size()
        while left > 0 and (part := self.rfile.read(min(left, 1 << 20))):
            left -= len(part)

    def reply(self, status: int, content: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Answer."""
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()
