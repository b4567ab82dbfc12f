"""A local server of the hub's HTTP API, as the client ``huggingface_hub`` uses it: repositories, commits, files.

Small files come inside a commit, others go through the batch API of Git LFS first. Private repositories are hidden from
those without a token, and only the owner of a token may write.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

OWNER, READER = "hf_owner", "hf_reader"
"""Tokens: of the organisation ``acme``, which may write there, and of somebody who may read it only."""

LFS = (".safetensors", ".parquet")


@dataclass
class Repo:
    """A repository: whether it is private, its commits (files by path) and its branches (commits by name)."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, changed: dict[str, bytes]) -> str:
        """Add a commit to a branch and return its name."""
        files = {**self.commits.get(self.branches.get(branch, ""), {}), **changed}
        content = [(path, hashlib.sha1(data).hexdigest()) for path, data in sorted(files.items())]
        sha = hashlib.sha1(repr((branch, len(self.commits), content)).encode()).hexdigest()
        self.commits[sha] = files
        self.branches[branch] = sha
        return sha


class Hub:
    """The state of the server.

    Attributes:
        repos: repositories by kind ("models", "datasets") and name.
        stored: files that went through LFS, by their SHA-256.
        asked: method and path of every request.
        ranges: ranges of bytes that were asked for.
        address: where the server listens.
        fault: answers a request in its own way and returns True, or leaves it to the server; None leaves all of them.
    """

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.stored: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.ranges: list[str] = []
        self.address = ""
        self.fault: Callable[[Handler], bool] | None = None

    def add(self, kind: str, name: str, files: dict[str, bytes], private: bool = False) -> Repo:
        """Make a repository with one commit."""
        repo = self.repos[kind, name] = Repo(private)
        repo.commit("main", files)
        return repo


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        url = urlsplit(self.path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.route = unquote(url.path)
        self.query = parse_qs(url.query)
        self.token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.hub.asked.append(f"{self.command} {self.route}")
        if self.hub.fault is not None and self.hub.fault(self):
            return
        if self.token not in ("", OWNER, READER):
            self.refuse(401, "", "Invalid credentials in Authorization header")
            return
        for method, pattern, respond in ROUTES:
            match = re.fullmatch(pattern, self.route)
            if match and self.command in method.split():
                respond(self, **match.groupdict())
                return
        self.refuse(404, "", f"no route {self.command} {self.route}")

    def send(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def reply(self, value: Any) -> None:
        self.send(200, json.dumps(value).encode(), Content_Type="application/json")

    def refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X_Error_Message": message} | ({"X_Error_Code": code} if code else {})
        self.send(status, json.dumps({"error": message}).encode(), Content_Type="application/json", **headers)

    def found(self, kind: str, name: str) -> Repo | None:
        """The repository that is asked for; a private one is hidden from those without a token."""
        repo = self.hub.repos.get((kind, name))
        if repo is None or (repo.private and not self.token):
            self.refuse(401 if not self.token else 404, "RepoNotFound", "Repository not found")
            return None
        return repo

    def files(self, kind: str, name: str, revision: str | None) -> tuple[str, dict[str, bytes]] | None:
        """Commit and files of a revision."""
        if (repo := self.found(kind, name)) is None:
            return None
        sha = repo.branches.get(revision or "main", revision or "")
        if sha not in repo.commits:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return sha, repo.commits[sha]

    def may_write(self, name: str) -> bool:
        if self.token == OWNER and name.startswith("acme/"):
            return True
        if not self.token:
            self.refuse(401, "", "Invalid username or password.")
        else:
            self.refuse(403, "", "Forbidden: you must use a write token of this organisation")
        return False

    def create(self) -> None:
        asked = json.loads(self.body)
        kind, name = f"{asked.get('type') or 'model'}s", f"{asked['organization']}/{asked['name']}"
        if not self.may_write(name):
            return
        url = f"{self.hub.address}/{name}"
        if (kind, name) in self.hub.repos:
            self.send(409, json.dumps({"error": "You already created this repo", "url": url}).encode())
            return
        self.hub.add(kind, name, {".gitattributes": b"*.safetensors filter=lfs\n"}, asked["visibility"] == "private")
        self.reply({"url": url, "id": name})

    def branch(self, kind: str, name: str, revision: str) -> None:
        repo = self.found(kind, name)
        if repo is None or not self.may_write(name):
            return
        if revision in repo.branches:
            self.refuse(409, "", "Reference already exists")
            return
        repo.branches[revision] = repo.branches["main"]
        self.reply({})

    def validate(self) -> None:
        _, metadata, _ = json.loads(self.body)["content"].split("---\n", 2)
        base = yaml.safe_load(metadata).get("base_model", "org/name")
        errors = [] if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base) else [{"message": f'"base_model" with value "{base}"'}]
        self.send(400 if errors else 200, json.dumps({"errors": errors, "warnings": []}).encode())

    def preupload(self, kind: str, name: str, revision: str) -> None:
        if self.found(kind, name) is None or not self.may_write(name):
            return
        asked = [file["path"] for file in json.loads(self.body)["files"]]
        modes = {path: "lfs" if path.endswith(LFS) else "regular" for path in asked}
        self.reply({"files": [{"path": p, "uploadMode": mode, "shouldIgnore": False} for p, mode in modes.items()]})

    def batch(self, name: str) -> None:
        if not self.may_write(name):
            return
        objects = []
        for item in json.loads(self.body)["objects"]:
            upload = {"href": f"{self.hub.address}/lfs/{item['oid']}"}
            there = item["oid"] in self.hub.stored
            objects.append({**item, "authenticated": True} | ({} if there else {"actions": {"upload": upload}}))
        data = json.dumps({"transfer": "basic", "objects": objects}).encode()
        self.send(200, data, Content_Type="application/vnd.git-lfs+json")

    def store(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            self.refuse(400, "", "another content than its oid")
            return
        self.hub.stored[oid] = self.body
        self.send(200)

    def commit(self, kind: str, name: str, revision: str) -> None:
        repo = self.found(kind, name)
        if repo is None or not self.may_write(name):
            return
        changed = {}
        for line in self.body.splitlines():
            item = json.loads(line)
            if item["key"] == "file":
                changed[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            elif item["key"] == "lfsFile":
                changed[item["value"]["path"]] = self.hub.stored[item["value"]["oid"]]
        sha = repo.commit(revision, changed)
        self.reply({"success": True, "commitOid": sha, "commitUrl": f"{self.hub.address}/{name}/commit/{sha}"})

    def info(self, kind: str, name: str, revision: str | None = None) -> None:
        if (found := self.files(kind, name, revision)) is None:
            return
        sha, files = found
        siblings = [{"rfilename": path, "size": len(data), "blobId": oid(data)} for path, data in files.items()]
        private = self.hub.repos[kind, name].private
        common = {"_id": "0", "id": name, "sha": sha, "private": private, "siblings": siblings, "tags": []}
        self.reply({**common, "modelId": name, "disabled": False, "gated": False, "downloads": 0, "likes": 0})

    def tree(self, kind: str, name: str, revision: str, path: str | None = None) -> None:
        if (found := self.files(kind, name, revision)) is None:
            return
        under = f"{path}/" if path else ""
        inside = [p for p in found[1] if p.startswith(under)]
        if path and not inside:
            self.refuse(404, "EntryNotFound", f"{path} does not exist")
            return
        recursive = self.query.get("recursive", ["false"])[0].lower() == "true"
        entries = [entry(p, found[1][p]) for p in inside if recursive or "/" not in p.removeprefix(under)]
        folders = {under + p.removeprefix(under).split("/")[0] for p in inside if "/" in p.removeprefix(under)}
        self.reply(entries + [{"type": "directory", "path": p, "size": 0, "oid": "0" * 40} for p in sorted(folders)])

    def paths_info(self, kind: str, name: str, revision: str) -> None:
        if (found := self.files(kind, name, revision)) is None:
            return
        asked = parse_qs(self.body.decode())["paths"]
        folders = {p.rpartition("/")[0] for p in found[1]} & set(asked)
        entries = [entry(p, found[1][p]) for p in asked if p in found[1]]
        self.reply(entries + [{"type": "directory", "path": p, "size": 0, "oid": "0" * 40} for p in sorted(folders)])

    def resolve(self, name: str, revision: str, path: str, kind: str = "models") -> None:
        if (found := self.files(kind, name, revision)) is None:
            return
        sha, files = found
        if path not in files:
            self.send(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found", X_Repo_Commit=sha)
            return
        data, headers = files[path], {"ETag": f'"{oid(files[path])}"', "X_Repo_Commit": sha, "Accept_Ranges": "bytes"}
        if self.command == "HEAD":
            self.send(200, Content_Length=str(len(data)), **headers)
        elif match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            begin, end = int(match[1]), min(int(match[2] or len(data) - 1), len(data) - 1)
            self.hub.ranges.append(match[0])
            self.send(206, data[begin : end + 1], Content_Range=f"bytes {begin}-{end}/{len(data)}", **headers)
        else:
            self.send(200, data, **headers)

    def log_message(self, *_: object) -> None:
        pass


def oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def entry(path: str, data: bytes) -> dict[str, Any]:
    """A file as listings describe it."""
    described: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": oid(data)}
    if path.endswith(LFS):
        described["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return described


_API, _NAME = r"/api/(?P<kind>models|datasets)/(?P<name>[^/]+/[^/]+)", r"(?P<name>[^/]+/[^/]+)"
ROUTES = (
    ("POST", "/api/repos/create", Handler.create),
    ("POST", "/api/validate-yaml", Handler.validate),
    ("POST", _API + "/branch/(?P<revision>.+)", Handler.branch),
    ("POST", _API + "/preupload/(?P<revision>.+)", Handler.preupload),
    ("POST", _API + "/commit/(?P<revision>.+)", Handler.commit),
    ("POST", _API + "/paths-info/(?P<revision>.+)", Handler.paths_info),
    ("POST", rf"/{_NAME}\.git/info/lfs/objects/batch", Handler.batch),
    ("PUT", "/lfs/(?P<oid>[0-9a-f]+)", Handler.store),
    ("GET", _API, Handler.info),
    ("GET", _API + "/revision/(?P<revision>.+)", Handler.info),
    ("GET", _API + r"/tree/(?P<revision>[^/]+)(/(?P<path>.+))?", Handler.tree),
    ("GET HEAD", rf"/(?P<kind>datasets)/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.resolve),
    ("GET HEAD", rf"/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.resolve),
)


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Run a hub without repositories in a thread."""
    hub = Hub()
    handler = type("Handler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
