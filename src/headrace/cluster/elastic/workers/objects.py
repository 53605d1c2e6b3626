"""Objects: named bytes in a folder, a bucket or this process. Weights lie there, by version, and what is too large for a call."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Protocol
from urllib.parse import parse_qs, urlencode, urlsplit
from weakref import WeakValueDictionary

from headrace._files import replaced
from headrace.cluster.elastic.workers.extras import require_aws

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_MEMORY = "memory:"
_in_memory: WeakValueDictionary[str, MemoryObjects] = WeakValueDictionary()  # by address


@dataclass
class Requests:
    """How many requests a store was sent. A bucket charges puts and gets; deletes are free."""

    puts: int = 0
    gets: int = 0
    deletes: int = 0


class Objects(Protocol):
    """A store of named bytes. A name never gets other bytes: workers keep what they fetched by its name.

    address: from which another process opens the same store, see `open_objects`.
    """

    address: str
    requests: Requests

    def put(self, name: str, data: bytes) -> None: ...

    def get(self, name: str) -> bytes:
        """The bytes; KeyError if there is no such object."""
        ...

    def delete(self, name: str) -> None:
        """Remove it, if it is there."""
        ...


class _Counted:
    def __init__(self) -> None:
        self.requests = Requests()
        self._lock = Lock()

    def _count(self, what: str) -> None:
        with self._lock:
            setattr(self.requests, what, getattr(self.requests, what) + 1)


class MemoryObjects(_Counted):
    """Objects of this process, for workers that are its threads. Nothing is copied: `get` returns what was put."""

    def __init__(self) -> None:
        super().__init__()
        self._data: dict[str, bytes] = {}
        self.address = f"{_MEMORY}{id(self)}"
        _in_memory[self.address] = self

    def put(self, name: str, data: bytes) -> None:
        self._count("puts")
        self._data[_checked(name)] = data

    def get(self, name: str) -> bytes:
        self._count("gets")
        try:
            return self._data[name]
        except KeyError:
            raise KeyError(f"there is no object {name!r} in {self.address}") from None

    def delete(self, name: str) -> None:
        self._count("deletes")
        self._data.pop(name, None)


class FolderObjects(_Counted):
    """Objects as files of a folder that all workers see."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path).absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        self.address = f"folder:{self.path}"

    def put(self, name: str, data: bytes) -> None:
        file = self._file(name)
        self._count("puts")
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(file, contended=True) as aside:
            aside.write_bytes(data)

    def get(self, name: str) -> bytes:
        file = self._file(name)
        self._count("gets")
        try:
            return file.read_bytes()
        except FileNotFoundError:
            raise KeyError(f"there is no object {name!r} in {self.address}") from None

    def delete(self, name: str) -> None:
        file = self._file(name)
        self._count("deletes")
        file.unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.path / _checked(name)


class S3Objects(_Counted):
    """Objects of a bucket of S3, or of a server with the same interface at `endpoint_url`.

    Objects of lost calls stay behind: give the bucket a lifecycle rule that removes old ones.
    """

    def __init__(self, bucket: str, *, endpoint_url: str | None = None, client: Any = None) -> None:
        super().__init__()
        if client is None:
            client = require_aws("s3", endpoint_url=endpoint_url)
        self.bucket, self._client = bucket, client
        self.address = f"s3://{bucket}" + (f"?{urlencode({'endpoint_url': endpoint_url})}" if endpoint_url else "")

    def put(self, name: str, data: bytes) -> None:
        self._request("puts", self._client.put_object, name, Body=data)

    def get(self, name: str) -> bytes:
        try:
            body: bytes = self._request("gets", self._client.get_object, name)["Body"].read()
        except self._client.exceptions.NoSuchKey:
            raise KeyError(f"there is no object {name!r} in {self.address}") from None
        return body

    def delete(self, name: str) -> None:
        self._request("deletes", self._client.delete_object, name)

    def _request(self, what: str, method: Callable[..., Any], name: str, **arguments: Any) -> Any:
        key = _checked(name)
        self._count(what)
        return method(Bucket=self.bucket, Key=key, **arguments)


def open_objects(address: str) -> Objects:
    """The store at the `address` of another process's: `folder:PATH` or `s3://BUCKET?endpoint_url=URL`; or here."""
    if address.startswith(_MEMORY):
        if (here := _in_memory.get(address)) is None:
            raise ValueError(f"the objects {address} are of another process, or gone")
        return here
    return _opened(address)


@lru_cache(maxsize=8)
def _opened(address: str) -> Objects:
    if address.startswith("folder:/"):
        return FolderObjects(address.removeprefix("folder:"))
    url = urlsplit(address)
    if url.scheme == "s3" and url.netloc:
        endpoints = parse_qs(url.query).get("endpoint_url", [None])
        return S3Objects(url.netloc, endpoint_url=endpoints[0])
    raise ValueError(f"an address of objects must be folder:PATH or s3://BUCKET, not {address[:100]!r}")


def _checked(name: str) -> str:
    if len(name) > 500 or not _NAME.fullmatch(name):
        raise ValueError(f"a name of an object has letters, digits, and ._-/ between them, up to 500, not {name[:100]!r}")
    return name
