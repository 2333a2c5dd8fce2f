"""HTTP for the sync client, with the standard library: kept connections, proxies of the environment, no redirects."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
import urllib.parse
import urllib.request
from typing import Dict, List, Optional, Tuple

from ._protocol import Request, no_answer

# Connections that are kept per client for later requests. More may be open while more threads call at once.
KEPT_CONNECTIONS = 8
CHUNK = 64 * 1024


class SyncStream:
    """An answer whose body is still to be read."""

    def __init__(self, pool: "SyncHttp", connection: http.client.HTTPConnection, url: str) -> None:
        self._pool = pool
        self._connection = connection
        # Kept, because the connection forgets its socket when the answer is one that closes it.
        self._socket: Optional[socket.socket] = connection.sock
        self._url = url
        self._reading = self._closed = False
        self._response = connection.getresponse()
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}

    def read(self) -> bytes:
        """Reads the whole body and returns the connection to the pool."""
        try:
            body = self._response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise no_answer(self._url, error) from None
        if self._response.will_close:
            self.close()
        else:
            self._pool.keep(self._connection)
        return body

    def chunk(self) -> bytes:
        """Reads what has arrived; empty at the end."""
        self._reading = True
        try:
            return b"" if self._closed else self._response.read1(CHUNK)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise no_answer(self._url, error) from None
        finally:
            self._reading = False
            if self._closed:
                self._connection.close()

    def close(self) -> None:
        """Closes the connection. Another thread that reads from it sees its end at once, and closes it then."""
        self._closed = True
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it was closed before
        if not self._reading:
            self._connection.close()


class SyncHttp:
    """Makes requests. Several threads may use it at the same time."""

    def __init__(self, url: str, timeout: float, tls: Optional[ssl.SSLContext]) -> None:
        self._timeout = timeout
        parts = urllib.parse.urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._proxy = _proxy_of(parts)
        self._lock = threading.Lock()
        self._kept: List[http.client.HTTPConnection] = []

    def open(self, request: Request, timeout: Optional[float] = None) -> SyncStream:
        """Sends a request; raises `Unreachable` if there is no answer."""
        connection = self._connection()
        try:
            connection.timeout = timeout or self._timeout
            if connection.sock is None:
                connection.connect()  # also switches Nagle's algorithm off
            else:
                connection.sock.settimeout(timeout or self._timeout)
            connection.request(request.method, self._place(request.url), body=request.body, headers=request.headers)
            return SyncStream(self, connection, request.url)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise no_answer(request.url, error) from None

    def keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._kept) < KEPT_CONNECTIONS:
                self._kept.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                if not self._kept:
                    break
                connection = self._kept.pop()
            if _is_usable(connection):
                return connection
            connection.close()
        host, port = self._proxy[:2] if self._proxy else (self._host, self._port)
        if self._tls is None:
            return http.client.HTTPConnection(host, port)
        secure = http.client.HTTPSConnection(host, port, context=self._tls)
        if self._proxy:
            secure.set_tunnel(self._host, self._port, self._proxy[2])
        return secure

    def _place(self, url: str) -> str:
        """The target of the request line: the path, or for a proxy the whole URL."""
        if self._proxy and self._tls is None:
            return url
        parts = urllib.parse.urlsplit(url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _proxy_of(parts: urllib.parse.SplitResult) -> Optional[Tuple[str, Optional[int], Dict[str, str]]]:
    """Host, port and headers of the proxy that the environment names for this URL."""
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    found = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return found.hostname or "", found.port, {}


def _is_usable(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has not closed a kept connection: nothing is readable on one that is idle."""
    if connection.sock is None:
        return False
    try:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            return not poll.poll(0)
        return not select.select([connection.sock], [], [], 0)[0]
    except (OSError, ValueError):
        return False
