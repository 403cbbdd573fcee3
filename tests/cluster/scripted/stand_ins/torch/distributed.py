"""PyTorch's store, in as far as ranks meet at it: ``set``, and ``get``, which waits for the value.

As with PyTorch's, rank 0 serves it in a thread, and every rank has one connection to it.
"""

import json
import selectors
import socket
import threading
from datetime import timedelta


class TCPStore:
    def __init__(
        self,
        host: str,
        port: int,
        world_size: None,
        is_master: bool,
        timeout: timedelta,
        wait_for_workers: bool,
    ) -> None:
        self.port = port
        if is_master:
            server = socket.create_server(("", port), backlog=2048)
            self.port = server.getsockname()[1]
            threading.Thread(target=_Server(server).run, daemon=True).start()
        self._connection = socket.create_connection((host, self.port), timeout.total_seconds())
        self._answers = self._connection.makefile("rb")

    def set(self, key: str, value: str) -> None:
        self._connection.sendall(json.dumps([key, value]).encode() + b"\n")

    def get(self, key: str) -> bytes:
        self._connection.sendall(json.dumps([key]).encode() + b"\n")
        answer = self._answers.readline()
        if not answer:
            raise RuntimeError("failed to recv, got 0 bytes: rank 0's store is gone")
        return json.loads(answer).encode()


class _Server:
    def __init__(self, server: socket.socket) -> None:
        self._server, self._values = server, {}
        self._waiting: dict[str, list[socket.socket]] = {}
        self._received: dict[socket.socket, bytes] = {}

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._server:
                        connection, _ = self._server.accept()
                        self._received[connection] = b""
                        selector.register(connection, selectors.EVENT_READ)
                    elif not self._serve(key.fileobj):
                        selector.unregister(key.fileobj)

    def _serve(self, connection: socket.socket) -> bool:
        """Do what a rank has asked for; False if it has left."""
        try:
            data = connection.recv(1 << 16)
        except ConnectionError:
            data = b""
        *lines, self._received[connection] = (self._received[connection] + data).split(b"\n")
        for line in lines:
            key, *value = json.loads(line)
            if value:
                self._values[key] = json.dumps(value[0]).encode() + b"\n"
                for asking in self._waiting.pop(key, []):
                    asking.sendall(self._values[key])
            elif key in self._values:
                connection.sendall(self._values[key])
            else:
                self._waiting.setdefault(key, []).append(connection)
        return bool(data)


class PrefixStore:
    def __init__(self, prefix: str, store: TCPStore) -> None:
        self._prefix, self._store = prefix, store

    def set(self, key: str, value: str) -> None:
        self._store.set(f"{self._prefix}/{key}", value)

    def get(self, key: str) -> bytes:
        return self._store.get(f"{self._prefix}/{key}")
