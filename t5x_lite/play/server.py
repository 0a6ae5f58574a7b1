"""Serve the page on this machine only, with nothing but Python's own server.

GET /         the page
GET /models   what it says about the models
POST /ask     a request of answers.py, answered in lines of JSON
"""

import json
from collections.abc import Iterator, Mapping
from contextvars import Context, copy_context
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from t5x_lite.errors import USAGE, UserError
from t5x_lite.play.answers import Json, answer, describe

if TYPE_CHECKING:
    from t5x_lite.api import LanguageModel

HOST = "127.0.0.1"
_PAGE = Path(__file__).with_name("page.html")
_LONGEST = 1 << 20  # bytes of a request
# The page is one file: nothing is loaded from elsewhere or sent there.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Server(ThreadingHTTPServer):
    """Serves models by name. One request is computed at a time.

    Args:
        port: 0 for any that is free.

    Raises:
        UserError: if the port is taken.
    """

    daemon_threads = True  # Ctrl-C does not wait for what is being written

    def __init__(self, models: Mapping[str, "LanguageModel"], port: int = 0):
        self.models = models
        self.computing = Lock()
        self._context = copy_context()  # permissions, which threads do not inherit
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            reason = f"--port={port}: {error.strerror or error}"
            raise UserError(USAGE, f"{reason}; name another, or 0 for any that is free") from error

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://{HOST}:{self.server_port}/"

    @property
    def own_hosts(self) -> set[str]:
        """What a browser may call this server."""
        return {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    def in_context(self) -> Context:
        """Return the permissions of the command."""
        return self._context.copy()

    def answers(self, request: Any) -> Iterator[Json]:
        """Answer a request; the last answer is an error if it failed."""
        try:
            if not isinstance(request, dict) or request.get("model") not in self.models:
                raise UserError(USAGE, f"model: expected one of {', '.join(self.models)}")
            with self.computing:
                yield from answer(self.models[request["model"]], request)
        except UserError as error:
            yield {"error": str(error)}


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        if not self._is_from_here():
            return
        if self.path.partition("?")[0] == "/":
            self._begin("text/html; charset=utf-8")
            self.wfile.write(_PAGE.read_bytes())
        elif self.path == "/models":
            models = [describe(name, model) for name, model in self.server.models.items()]
            self._begin("application/json")
            self.wfile.write(json.dumps(models).encode())
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        if not self._is_from_here():
            return
        if self.path != "/ask":
            return self.send_error(HTTPStatus.NOT_FOUND)
        # A form of another page cannot send this type without asking first.
        if self.headers.get_content_type() != "application/json":
            return self.send_error(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LONGEST:
            return self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            request = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return self.send_error(HTTPStatus.BAD_REQUEST)
        self._begin("application/x-ndjson")
        self.server.in_context().run(self._answer, request)

    def _answer(self, request: Any) -> None:
        try:
            for one in self.server.answers(request):
                self.wfile.write(json.dumps(one).encode() + b"\n")
                self.wfile.flush()
        except ConnectionError:
            pass  # the page was closed, or asked something else

    def _is_from_here(self) -> bool:
        """Refuse what another site's page sends, also under a name that leads here."""
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
        """Say nothing for each request."""
