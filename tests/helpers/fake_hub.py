"""A Hugging Face Hub of this process: the few endpoints that the client asks for one repository."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class FakeHub(ThreadingHTTPServer):
    """Repositories by name: whether they are private, and the files of each branch."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.private: dict[str, bool] = {}
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.tokens: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Any  # a FakeHub

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

    def do_POST(self) -> None:
        self.server.tokens.append(self.headers["Authorization"])
        length = int(self.headers.get("Content-Length") or 0)
        lines = [json.loads(line) for line in self.rfile.read(length).splitlines() if line.strip()]
        given = lines[0] if lines else {}
        if self.path == "/api/repos/create":
            name = f"{given.get('organization') or 'me'}/{given['name']}"
            status = 409 if name in self.server.private else 200
            is_private = bool(given.get("private")) or given.get("visibility") == "private"
            self.server.private.setdefault(name, is_private)
            self.server.files.setdefault((name, "main"), {})
            return self._answer(status, {"url": f"{self.base}/{name}"})
        if self.path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        kind, repo, action, branch = self.parts()
        assert kind == "models"
        files = self.server.files.setdefault((repo, branch), {})
        if action == "branch":
            return self._answer(200, {})
        if action == "preupload":
            wanted = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                      for f in given["files"]]  # fmt: skip
            return self._answer(200, {"files": wanted})
        assert action == "commit"
        for line in lines:
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            if line["key"] == "deletedFile":
                del files[line["value"]["path"]]
        url = f"{self.base}/{repo}/commit/{'a' * 40}"
        return self._answer(200, {"commitUrl": url, "commitOid": "a" * 40, "success": True})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path == "/api/whoami-v2":
            return self._answer(200, {"name": "me", "type": "user"})
        if self.path.startswith("/api/models/"):
            repo = "/".join(self.path.split("/")[3:5])
            if repo not in self.server.private:
                return self._missing("RepoNotFound")
            if "/tree/" in self.path:
                branch = self.path.partition("/tree/")[2].partition("?")[0]
                files = self.server.files[repo, branch]
                return self._answer(200, [
                    {"type": "file", "path": name, "size": len(content), "oid": "b" * 40}
                    for name, content in files.items()
                ])  # fmt: skip
            about = {"id": repo, "private": self.server.private[repo], "sha": "a" * 40}
            return self._answer(200, {**about, "siblings": [], "tags": []})
        owner, name, _, branch, file = self.path.strip("/").split("/", 4)
        repo = f"{owner}/{name}"
        if repo not in self.server.private:
            return self._missing("RepoNotFound")
        if (repo, branch) not in self.server.files:
            return self._missing("RevisionNotFound")
        content = self.server.files[repo, branch].get(file)
        if content is None:
            return self._missing("EntryNotFound")
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", hashlib.sha1(branch.encode()).hexdigest())
        return self.finish_with(content)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def parts(self) -> tuple[str, str, str, str]:
        _, _, kind, owner, name, action, branch = self.path.split("/")
        return kind, f"{owner}/{name}", action, branch

    def _missing(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.finish_with(b"{}")

    def _answer(self, status: int, content: Any) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.finish_with(json.dumps(content).encode())

    def finish_with(self, content: bytes) -> None:
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextlib.contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, cache: str, token: str | None) -> Iterator[FakeHub]:
    """Have the client talk to a hub of this process, with a cache of its own."""
    from huggingface_hub import constants

    hub = FakeHub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{hub.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", f"{cache}/token")
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
