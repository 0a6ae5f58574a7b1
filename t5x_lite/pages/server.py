"""Serve one page on this machine only, using nothing but Python's own server.

GET /        the page
GET /NAME    JSON that the page asks for
POST /NAME   a request of the page as JSON; each answer is sent as a line of JSON when it is ready
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from t5x_lite.errors import USAGE, UserError

Json = dict[str, Any]
# Get: query of the address → JSON. Post: request → its answers.
Get = Callable[[Mapping[str, str]], Any]
Post = Callable[[Json], Iterator[Json]]

HOST = "127.0.0.1"
_DIGITS = 6  # maximum number of digits of a request's length in bytes
# The page is one file: it loads nothing from elsewhere and sends nothing there.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def short_names(paths: Sequence[str]) -> list[str]:
    """Name paths by their last parts, or by the whole paths if two last parts are equal.

    >>> short_names(["runs/gpt", "runs/bert/"]), short_names(["a/gpt", "b/gpt"])
    (['gpt', 'bert'], ['a/gpt', 'b/gpt'])
    """
    names = [path.rstrip("/").rpartition("/")[2] for path in paths]
    return names if len(set(names)) == len(names) else list(paths)


class LocalServer(ThreadingHTTPServer):
    """A server for one page, which handles each request in its own thread.

    Args:
        page: the file of the page.
        get: path → function that returns the answer.
        post: path → function that yields the answers. In both, a UserError is answered by
            {"error": its sentence}.
        port: the port to listen on; 0: any free port.

    Raises:
        UserError: if the port is taken.
    """

    daemon_threads = True  # Ctrl-C does not wait for answers in progress

    def __init__(
        self,
        page: Path,
        get: Mapping[str, Get],
        post: Mapping[str, Post] | None = None,
        port: int = 0,
    ):
        self.page, self.get, self.post = page, get, post or {}
        self._context = copy_context()  # permissions, which threads do not inherit
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            reason = f"--port={port}: {error.strerror or error}"
            raise UserError(USAGE, f"{reason}; name another, or 0 for any that is free") from error

    @property
    def address(self) -> str:
        """Address of the page for a browser."""
        return f"http://{HOST}:{self.server_port}/"

    @property
    def own_hosts(self) -> set[str]:
        """Hosts and ports under which a browser may reach this server."""
        names = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        return names | {HOST, "localhost"} if self.server_port == 80 else names

    def in_context(self) -> Context:
        """Return a copy of the command's context, which holds its permissions."""
        return self._context.copy()


class _Handler(BaseHTTPRequestHandler):
    server: LocalServer  # pyrefly: ignore[bad-override-mutable-attribute]

    def handle(self) -> None:
        """Handle a connection, which the page may close at any time."""
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        if not self._is_from_here():
            return
        address = urlsplit(self.path)
        if address.path == "/":
            self._begin("text/html; charset=utf-8")
            self.wfile.write(self.server.page.read_bytes())
        elif address.path in self.server.get:
            query = dict(parse_qsl(address.query))
            answer = self.server.in_context().run(self._get, address.path, query)
            self._begin("application/json")
            self.wfile.write(json.dumps(answer).encode())
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _get(self, path: str, query: Mapping[str, str]) -> Any:
        try:
            return self.server.get[path](query)
        except UserError as error:
            return {"error": str(error)}

    def do_POST(self) -> None:
        if not self._is_from_here():
            return
        if self.path not in self.server.post:
            return self.send_error(HTTPStatus.NOT_FOUND)
        # Another site's page cannot send this type without asking first (CORS preflight).
        if self.headers.get_content_type() != "application/json":
            return self.send_error(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > _DIGITS:
            return self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            request = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            return self.send_error(HTTPStatus.BAD_REQUEST)
        self._begin("application/x-ndjson")
        self.server.in_context().run(self._answer, request)

    def _answer(self, request: Json) -> None:
        try:
            for one in self.server.post[self.path](request):
                self._write_line(one)
        except UserError as error:
            self._write_line({"error": str(error)})
        except ConnectionError:
            raise
        except Exception as error:  # otherwise the page would wait for an answer that never comes
            self._write_line({"error": f"this failed: {type(error).__name__}: {error}"})
            raise

    def _write_line(self, answer: Json) -> None:
        self.wfile.write(json.dumps(answer).encode() + b"\n")
        self.wfile.flush()

    def _is_from_here(self) -> bool:
        """Return True for a request from this page; refuse requests from other sites' pages.

        These may also use another host name that resolves to this machine (DNS rebinding).
        """
        hosts, origin = self.server.own_hosts, self.headers.get("Origin")
        is_own = self.headers.get("Host") in hosts
        if not is_own or (origin and origin.removeprefix("http://") not in hosts):
            self.send_error(HTTPStatus.FORBIDDEN)
            return False
        return True

    def _begin(self, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""
