"""A server that answers as a test says, and a way to run the same test with both clients."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import unittest
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, Iterator, List, Optional, Union
from unittest import mock

from submission_manager import Client

try:
    from submission_manager import AsyncClient
    HAVE_ASYNC = True
except ImportError:
    HAVE_ASYNC = False

INTENT: Dict[str, Any] = {"intentId": "a", "submissionTarget": "t", "createdAt": "2026-11-16T09:00:00.000000Z", "status": "pending"}
REPLAYED: Dict[str, Any] = {**INTENT, "replayed": True}


@dataclass
class Reply:
    """An answer with a whole body."""

    status: int = 200
    body: Union[bytes, Any] = b""
    headers: Dict[str, str] = field(default_factory=dict)


@dataclass
class Pieces:
    """A stream. If it is cut, the connection breaks after the last piece; if it is held, it stays open and silent.
    Otherwise it ends cleanly."""

    pieces: List[bytes]
    cut: bool = False
    hold: bool = False


class HangUp:
    """Closes the connection without an answer."""


class Silence:
    """Answers nothing until the test is over."""


Script = Union[Reply, Pieces, HangUp, Silence]
GOOD = Reply(200, INTENT, {"Idempotent-Replayed": "true"})


def error(status: int, code: str, retry_after: Optional[str] = None, **details: Any) -> Reply:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Reply(status, {"error": {"code": code, "message": "no", "details": details}}, headers)


class Asked:
    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self.method, self.path = handler.command, handler.path
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        self.body = handler.rfile.read(int(self.headers.get("content-length", "0")))
        self.connection = handler.client_address


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        case = self.server.case  # type: ignore[attr-defined]
        case.asked.append(Asked(self))
        reply = case.script.pop(0) if case.script else error(500, "no_script_left")
        if isinstance(reply, Reply):
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            return
        self.close_connection = True
        if isinstance(reply, Pieces):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in reply.pieces:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            if reply.hold:
                case.over.wait(10)
            elif not reply.cut:
                self.wfile.write(b"0\r\n\r\n")
        elif isinstance(reply, Silence):
            case.over.wait(10)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


class Blocking:
    """The async client as if it were the sync one: runs its coroutines and iterators to their end."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target, self._loop = target, loop

    def _of(self, value: Any) -> Any:
        if asyncio.isfuture(value):
            return BlockingFuture(value, self._loop)
        if inspect.isawaitable(value):
            return self._of(self._loop.run_until_complete(value))
        module = type(value).__module__
        wrapped = module.startswith("submission_manager._async") or module.endswith("_batcher_async")
        return Blocking(value, self._loop) if wrapped or inspect.isasyncgen(value) else value

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return (lambda *args, **kwargs: self._of(value(*args, **kwargs))) if inspect.ismethod(value) else self._of(value)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._target.__aiter__()
        with suppress(StopAsyncIteration):
            while True:
                yield self._loop.run_until_complete(iterator.__anext__())

    def __next__(self) -> Any:
        try:
            return self._loop.run_until_complete(self._target.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> "Blocking":
        self._loop.run_until_complete(self._target.__aenter__())
        return self

    def __exit__(self, *given: Any) -> None:
        self._loop.run_until_complete(self._target.__aexit__(*given))


class BlockingFuture:
    def __init__(self, future: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._future, self._loop = future, loop

    def result(self) -> Any:
        return self._loop.run_until_complete(self._future)

    def done(self) -> bool:
        return bool(self._future.done())


class Case(unittest.TestCase):
    """Tests against the scripted server. `client` makes a client; subclasses run the same tests with another one."""

    script: List[Script]

    def setUp(self) -> None:
        self.script = []
        self.asked: List[Asked] = []
        self.over = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.case = self  # type: ignore[attr-defined]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(self.over.set)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        # Pauses are tested without waiting for them.
        for name in ("submission_manager._protocol.FIRST_PAUSE", *self.first_polls()):
            patch = mock.patch(name, 0.0005)
            patch.start()
            self.addCleanup(patch.stop)

    def first_polls(self) -> List[str]:
        return ["submission_manager._sync.intents.FIRST_POLL"]

    def client(self, *args: Any, **kwargs: Any) -> Any:
        client = Client(self.url, *args, **kwargs)
        self.addCleanup(client.close)
        return client


class AsyncCase(Case):
    """The same tests with the async client."""

    def first_polls(self) -> List[str]:
        return ["submission_manager._async.intents.FIRST_POLL"]

    def setUp(self) -> None:
        if not HAVE_ASYNC:
            self.skipTest("httpx is not installed")
        super().setUp()
        self.loop = asyncio.new_event_loop()
        self.addCleanup(self.loop.close)

    def client(self, *args: Any, **kwargs: Any) -> Any:
        async def made() -> Any:
            return AsyncClient(self.url, *args, **kwargs)

        client = Blocking(self.loop.run_until_complete(made()), self.loop)
        self.addCleanup(client.close)
        return client
