"""A small Hub on this machine, for the real client to talk to: two origins, the Hub and its "CDN", bound to 127.0.0.1.

    with Hub(folder) as hub:
        token = hub.store.token("alice")
        hub.fail("status", "POST", "/commit/", status=500)
        subprocess.run(..., env={"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1", ...})
        assert not hub.leaks(token)

It keeps every request with its body, and commits the faults of `loopback_faults` on demand.
"""

import base64
import hashlib
import json
import os
import re
import socket
import struct
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from loopback_faults import Fault
from loopback_routes import ROUTES, Reply, Request
from loopback_store import Refused, Store, User, is_large, large_file, small_file

KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}


class Hub:
    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.store = Store(folder)
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.page_size = 1000
        self.multipart_over = 5 * 2**20
        self.lock = threading.RLock()
        self.stopping = threading.Event()
        self.origins = {name: _Origin(self, name) for name in ("hub", "cdn")}
        self.url, self.cdn = (f"http://127.0.0.1:{origin.server_port}" for origin in self.origins.values())

    def __enter__(self) -> "Hub":
        for origin in self.origins.values():
            threading.Thread(target=origin.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.stopping.set()
        for origin in self.origins.values():
            origin.shutdown()
            origin.server_close()

    def fail(self, kind: str, method: str, path: str, **options) -> None:
        """From now on this goes wrong, once unless `times` says otherwise."""
        self.faults.append(Fault(kind, method, path, **options))

    def mend(self) -> None:
        """Nothing goes wrong any more, and requests are recorded anew."""
        self.faults.clear()
        self.requests.clear()

    def fault_for(self, request: Request) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.concerns(request.method, request.route):
                    fault.times -= 1
                    return fault
        return None

    def seen(self, method: str, path: str = "") -> list[Request]:
        return [r for r in self.requests if r.method == method and re.search(path, r.route)]

    def writes(self) -> list[Request]:
        """Requests that may change something."""
        return [r for r in self.requests if r.method not in {"GET", "HEAD"}]

    def head(self, repo_id: str, revision: str = "main", kind: str = "model"):
        return self.store.repositories[kind, repo_id].at(revision)

    def bytes_of(self, repo_id: str, path: str, revision: str = "main") -> bytes:
        return self.store.read(self.head(repo_id, revision).files[path])

    def plant(self, repo_id: str, files: dict[str, bytes], private: bool = False) -> str:
        """A commit that no client made; its files may have any name. Returns its id."""
        repository = self.store.repositories.get(("model", repo_id))
        repository = repository or self.store.create("model", repo_id, private, repo_id.split("/")[0])
        head = repository.at("main")
        entries = dict(head.files)
        for path, content in files.items():
            if is_large(head, path, len(content)):
                sha256 = hashlib.sha256(content).hexdigest()
                self.store.path(sha256).write_bytes(content)
                entries[path] = large_file(sha256, len(content))
            else:
                entries[path] = small_file(content)
        return repository.add("main", "planted", repository.owner, entries).oid

    def leaks(self, token: str) -> list[str]:
        """Where the token has been seen beside the Authorization header that the Hub itself is sent."""
        secret, found = token.encode(), []
        for request in self.requests:
            name = f"{request.origin}: {request.method} {request.route}"
            for header, value in request.headers.items():
                if token in value and (request.origin, header) != ("hub", "authorization"):
                    found.append(f"{name}: header {header}")
            if token in unquote(request.path) or secret in request.body or secret in _decoded_files(request):
                found.append(name)
        for repository in self.store.repositories.values():
            for commit in repository.commits().values():
                for path, file in commit.files.items():
                    if secret in self.store.read(file) or token in path or token in commit.title:
                        found.append(f"stored: {repository.id}@{commit.oid[:8]}/{path}")
        return found

    # What is answered

    def user(self, request: Request) -> User | None:
        if request.token is None:
            return None
        if request.token not in self.store.users:
            raise Refused(401, "Invalid credentials in Authorization header")
        return self.store.users[request.token]

    def answer(self, request: Request) -> Reply:
        for origin, method, pattern, action in ROUTES:
            match = re.fullmatch(pattern, urlsplit(request.path).path)  # a branch's slash is still %2F here
            if origin == request.origin and method == request.method and match:
                parts = {name: part and unquote(part) for name, part in match.groupdict().items()}
                if "kind" in parts:
                    parts["kind"] = KINDS[(parts["kind"] or "models").rstrip("/")]
                return action(self, request, **parts)
        raise Refused(404, f"{request.method} {request.route}: no such endpoint here")


def _decoded_files(request: Request) -> bytes:
    """The files inside a commit, which travel as base64."""
    if "/commit/" not in request.route:
        return b""
    values = [json.loads(line)["value"] for line in request.body.splitlines()]
    return b"\n".join(base64.b64decode(value["content"]) for value in values if "content" in value)


class _Origin(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub, name: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub, self.name = hub, name

    def handle_error(self, request, client_address):
        """A client that hangs up is nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or every small answer waits 40 ms
    server: _Origin

    def log_message(self, *arguments):
        """Requests are recorded, not printed."""

    def answer(self) -> None:
        hub, headers = self.server.hub, {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.server.name, self.command, self.path, headers, self.read_body())
        hub.requests.append(request)
        fault = hub.fault_for(request)
        kind = fault.kind if fault else None
        if kind == "reset":
            return self.reset()
        if kind == "hang":
            hub.stopping.wait()
            return self.hang_up()
        if kind == "status":
            return self.send(Reply({"error": "injected"}, fault.status, fault.headers))
        if kind == "ignore_range":
            request = replace(request, headers={**headers, "range": ""})
        if kind == "truncate":
            request = replace(request, body=request.body[: fault.at])
        try:
            reply = hub.answer(request)
        except Refused as error:
            code = {"X-Error-Code": error.code} if error.code else {}
            reply = Reply({"error": error.message}, error.status, {**code, "X-Error-Message": error.message})
        if kind == "lose_reply":
            return self.reset()
        self.send(reply, fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def send(self, reply: Reply, fault: Fault | None = None) -> None:
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        if not isinstance(reply.body, bytes):
            self.send_header("Content-Type", "application/json")
        for name, value in reply.headers.items():
            self.send_header(name, quote(value, safe=" -_.~!*'();:@&=+$,/?#[]<>\"%"))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        kind, at = (fault.kind, fault.at) if fault else (None, 0)
        if kind == "flip":
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        if kind == "garble":
            body = b"\xff" * len(body)
        if kind not in {"cut", "reset_body", "stall", "drip"}:
            self.wfile.write(body)
            return
        self.wfile.write(body[:at])
        if kind == "reset_body":
            return self.reset()
        if kind == "drip":
            for byte in body[at:]:
                self.wfile.write(bytes([byte]))
                self.server.hub.stopping.wait(0.1)
        if kind == "stall":
            self.server.hub.stopping.wait()
        self.hang_up()

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Closes the connection with RST instead of FIN."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())
