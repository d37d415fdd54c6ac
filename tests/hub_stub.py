"""A Hugging Face Hub for tests: in memory, on loopback, with what pushing and loading a model asks for.

Files named *.safetensors travel as LFS objects before the commit, as on the Hub; all others travel in the commit. Each
repository keeps one state, which every revision names. A test can have a request refused, or answered by silence after
it was done: `hub.interruptions["/commit/"] = "refuse"`, or "hang up".
"""

import base64
import hashlib
import json
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlparse

import transformers.utils.hub
from huggingface_hub import constants, hf_api


class Hub:
    """The repositories by name: path to content; and what was asked for."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.datasets: dict[str, dict[str, Any]] = {}  # name: what the Hub says of it, such as its card
        self.private: dict[str, bool] = {}
        self.commits: dict[str, list[str]] = {}
        self.objects: dict[str, bytes] = {}
        self.interruptions: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        handler = type("HandlerOfThisHub", (Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def add(self, name: str, files: Mapping[str, bytes] | Path, *commits: str) -> None:
        """A repository with these files, or those in a folder, and the names of its commits."""
        if isinstance(files, Path):
            found = [path for path in files.rglob("*") if path.is_file()]
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in found}
        self.repositories[name], self.commits[name], self.private[name] = dict(files), [*commits], False

    def environment(self, home: Path) -> dict[str, str]:
        """Variables of a process that is to use this Hub, with a cache of its own."""
        values = {"HF_ENDPOINT": self.url, "HF_TOKEN": "hf_x", "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
        return values | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


@contextmanager
def serve() -> Iterator[Hub]:
    """A Hub while the block lasts, for this process and for those that are given its `environment`."""
    hub = Hub()
    threading.Thread(target=hub.server.serve_forever, args=(0.01,), daemon=True).start()
    files = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    places = {"ENDPOINT": hub.url, "HUGGINGFACE_CO_URL_TEMPLATE": files, "HF_HUB_OFFLINE": False}
    cache = tempfile.TemporaryDirectory()
    places |= {"HF_HUB_DISABLE_XET": True, "HF_HUB_CACHE": cache.name}
    try:
        with (
            cache,
            mock.patch.object(hf_api.api, "endpoint", hub.url),
            mock.patch.object(transformers.utils.hub, "_hf_api", None, create=True),
            mock.patch.multiple(constants, **places),
            mock.patch.dict(os.environ, {"HF_TOKEN": "hf_x"}),
        ):
            yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()


def blob(content: bytes) -> str:
    """What git calls a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        """Nothing on the terminal: requests are in `hub.requests`."""

    def handle_request(self) -> None:
        path, body = unquote(urlparse(self.path).path), self.body()
        self.hub.requests.append((self.command, path))
        fragment = next((key for key in self.hub.interruptions if key in path), None)
        interruption = self.hub.interruptions.pop(fragment) if fragment else ""
        if interruption == "refuse":
            return self.answer(403, {"error": "refused by the test"})
        status, value, headers = self.reply(path, body)
        if interruption == "hang up":
            self.close_connection = True
            return self.connection.close()
        self.answer(status, value, headers)

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def answer(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def reply(self, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        """Status, content and headers for a request."""
        hub = self.hub
        if path == "/api/whoami-v2":
            return 200, {"name": "me", "type": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}}, {}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}, {}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            known = name in hub.repositories
            hub.repositories.setdefault(name, {})
            hub.commits.setdefault(name, [])
            hub.private.setdefault(name, asked.get("private") or asked.get("visibility") == "private")
            return 409 if known else 200, {"url": f"{hub.url}/{name}", "name": name, "id": name}, {}
        if path.startswith("/objects/"):
            hub.objects[path.split("/")[-1]] = body
            return 200, {}, {}
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return 200, {"transfer": "basic", "objects": list(map(self.place, json.loads(body)["objects"]))}, {}
        if found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)", path):
            if found[1] not in hub.datasets:
                return 404, {"error": "missing"}, {"X-Error-Code": "RepoNotFound"}
            return 200, {"id": found[1], "siblings": [{"rfilename": "a.parquet"}], **hub.datasets[found[1]]}, {}
        found = re.fullmatch(r"/(?:api/models/)?([^/]+/[^/]+?)(?:/(\w+)/([^/]+)(?:/(.*))?)?", path)
        if not found or found[1] not in hub.repositories:
            return 404, {"error": "missing"}, {"X-Error-Code": "RepoNotFound"}
        name, verb, _, file = found.groups()
        content = hub.repositories[name]
        commit = hub.commits[name][-1] if hub.commits[name] else "0" * 40
        if verb == "preupload":
            return 200, {"files": [self.mode(content, row["path"]) for row in json.loads(body)["files"]]}, {}
        if verb == "commit":
            return self.commit(name, body)
        if verb == "tree":
            rows = [
                {"type": "file", "path": key, "size": len(data), "oid": blob(data)} for key, data in content.items()
            ]
            return 200, rows, {}
        if verb == "resolve":
            if file not in content:
                return 404, {"error": "missing"}, {"X-Error-Code": "EntryNotFound"}
            return 200, content[file], {"ETag": f'"{blob(content[file])}"', "X-Repo-Commit": commit}
        about = {"id": name, "sha": commit, "private": hub.private[name], "tags": [], "downloads": 0, "likes": 0}
        return 200, about | {"siblings": [{"rfilename": key} for key in content]}, {}

    def place(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Where an LFS object is to be sent; nowhere if it is here."""
        if wanted["oid"] in self.hub.objects:
            return dict(wanted)
        return {**wanted, "actions": {"upload": {"href": f"{self.hub.url}/objects/{wanted['oid']}"}}}

    def mode(self, content: Mapping[str, bytes], path: str) -> dict[str, Any]:
        lfs, old = path.endswith(".safetensors"), content.get(path)
        known = None if old is None else hashlib.sha256(old).hexdigest() if lfs else blob(old)
        return {"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False, "oid": known}

    def commit(self, name: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        """All of it or, where an object is missing, nothing."""
        content = dict(self.hub.repositories[name])
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                content[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                if value["oid"] not in self.hub.objects:
                    return 400, {"error": f"no such object {value['oid']}"}, {}
                content[value["path"]] = self.hub.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                del content[value["path"]]
        self.hub.repositories[name] = content
        commit = hashlib.sha1(body + str(len(self.hub.commits[name])).encode()).hexdigest()
        self.hub.commits[name].append(commit)
        place = f"{self.hub.url}/{name}/commit/{commit}"
        return 200, {"success": True, "commitOid": commit, "commitUrl": place, "hookOutput": ""}, {}
