"""What a loopback Hub answers: the endpoints that the client calls, for models, datasets and spaces.

An action takes the Hub, the request and the named parts of its path. `{kind}` is what the Hub calls a repository's
type; actions that write look the repository up with `write=True`, which is where tokens are judged.
"""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from loopback_card import validate_card
from loopback_store import Refused, describe, describe_file, is_large, large_file, small_file

REPO = r"(?P<id>[^/]+/[^/]+)"
DATE = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class Request:
    origin: str  # "hub" or "cdn"
    method: str
    path: str  # as sent, with the query
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def route(self) -> str:
        return unquote(urlsplit(self.path).path)

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query)

    @property
    def token(self) -> str | None:
        value = self.headers.get("authorization", "")
        return value.removeprefix("Bearer ") or None


@dataclass
class Reply:
    body: bytes | dict | list = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def whoami(hub, request):
    user = hub.user(request)
    if user is None:
        raise Refused(401, "Invalid username or password.")
    access = {"type": "access_token", "accessToken": {"displayName": "test", "role": user.role}}
    return Reply({"type": "user", "name": user.name, "fullname": user.name, "orgs": [], "auth": access})


def create_repo(hub, request):
    user, wanted = hub.user(request), json.loads(request.body)
    owner = wanted.get("organization") or (user.name if user else "")
    hub.store.check_writes(user, owner)
    kind, repo_id = wanted.get("type") or "model", f"{owner}/{wanted['name']}"
    url = f"{hub.url}/{'' if kind == 'model' else kind + 's/'}{repo_id}"
    try:
        hub.store.create(kind, repo_id, wanted.get("visibility") == "private", user.name)
    except Refused as error:
        return Reply({"error": error.message, "url": url}, error.status)
    return Reply({"url": url, "name": repo_id})


def delete_repo(hub, request):
    user, wanted = hub.user(request), json.loads(request.body)
    repository = hub.store.find(
        wanted.get("type") or "model", f"{wanted.get('organization') or user.name}/{wanted['name']}", user, write=True
    )
    del hub.store.repositories[repository.kind, repository.id]
    return Reply({})


def move_repo(hub, request):
    user, wanted = hub.user(request), json.loads(request.body)
    repository = hub.store.find(wanted.get("type") or "model", wanted["fromRepo"], user, write=True)
    del hub.store.repositories[repository.kind, repository.id]
    repository.id = wanted["toRepo"]
    hub.store.repositories[repository.kind, repository.id] = repository
    return Reply({})


def change_settings(hub, request, kind, id):
    repository, wanted = hub.store.find(kind, id, hub.user(request), write=True), json.loads(request.body)
    if "visibility" in wanted:
        repository.private = wanted["visibility"] == "private"
    return Reply({"private": repository.private})


def validate_yaml(hub, request):
    errors, warnings = validate_card(json.loads(request.body)["content"])
    found = {"errors": [{"message": e} for e in errors], "warnings": [{"message": w} for w in warnings]}
    return Reply(found, 400 if errors else 200)


def preupload(hub, request, kind, id, revision):
    commit = hub.store.find(kind, id, hub.user(request), write=True).at(revision)
    files = []
    for wanted in json.loads(request.body)["files"]:
        path, old = wanted["path"], commit.files.get(wanted["path"])
        mode = "lfs" if is_large(commit, path, wanted["size"]) else "regular"
        files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": old.etag if old else None})
    return Reply({"files": files})


def lfs_batch(hub, request, kind, id):
    hub.store.find(kind, id, hub.user(request), write=True)
    objects = []
    for wanted in json.loads(request.body)["objects"]:
        oid, size = wanted["oid"], wanted["size"]
        entry = {"oid": oid, "size": size}
        if not hub.store.is_intact(oid):
            upload = {"href": f"{hub.cdn}/upload/{oid}?signature=presigned"}
            if size > hub.multipart_over:
                parts = -(-size // hub.multipart_over)
                links = {str(i): f"{hub.cdn}/upload/{oid}.{i}?signature=presigned" for i in range(1, parts + 1)}
                upload = {
                    "href": f"{hub.url}/complete/{oid}",
                    "header": {"chunk_size": str(hub.multipart_over), **links},
                }
            prefix = "" if kind == "model" else f"{kind}s/"
            verify = {"href": f"{hub.url}/{prefix}{id}.git/info/lfs/verify"}
            entry["actions"] = {"upload": upload, "verify": verify}
        objects.append(entry)
    return Reply({"transfer": "basic", "objects": objects})


def store_upload(hub, request, name):
    hub.store.path(name).write_bytes(request.body)
    return Reply(headers={"ETag": f'"{hashlib.md5(request.body).hexdigest()}"'})


def complete_upload(hub, request, oid):
    parts = [hub.store.path(f"{oid}.{part['partNumber']}") for part in json.loads(request.body)["parts"]]
    hub.store.path(oid).write_bytes(b"".join(part.read_bytes() for part in parts))
    for part in parts:
        part.unlink()
    return Reply({"success": True})


def lfs_verify(hub, request, kind, id):
    hub.store.find(kind, id, hub.user(request), write=True)
    wanted = json.loads(request.body)
    if not hub.store.is_intact(wanted["oid"]):
        hub.store.path(wanted["oid"]).unlink(missing_ok=True)
        raise Refused(422, "The uploaded bytes don't have the announced sha256")
    return Reply({})


def commit_files(hub, request, kind, id, revision):
    user = hub.user(request)
    with hub.lock:
        repository = hub.store.find(kind, id, user, write=True)
        parent = repository.at(revision)
        files, header = dict(parent.files), {}
        for item in map(json.loads, request.body.splitlines()):
            value = item["value"]
            if item["key"] == "header":
                header = value
            elif item["key"] == "file":
                files[value["path"]] = small_file(base64.b64decode(value["content"]))
            elif item["key"] == "lfsFile":
                if not hub.store.is_intact(value["oid"]):
                    raise Refused(400, f"{value['path']}: its bytes have not been uploaded")
                files[value["path"]] = large_file(value["oid"], hub.store.path(value["oid"]).stat().st_size)
            elif item["key"] == "deletedFile":
                del files[value["path"]]
            elif item["key"] == "deletedFolder":
                files = {
                    path: file for path, file in files.items() if not path.startswith(value["path"].rstrip("/") + "/")
                }
        if header.get("parentCommit") not in (None, parent.oid):
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        pull = "create_pr" in request.query
        commit = repository.add(revision, header["summary"], user.name, files, pull)
    url = f"{hub.url}/{id}/commit/{commit.oid}"
    extra = {"pullRequestUrl": f"{hub.url}/{id}/discussions/{len(repository.pulls)}"} if pull else {}
    return Reply({"success": True, "commitOid": commit.oid, "commitUrl": url, "hookOutput": "", **extra})


def repo_info(hub, request, kind, id, revision=None):
    repository = hub.store.find(kind, id, hub.user(request))
    return Reply(describe(hub.store, repository, repository.at(revision or "main"), "blobs" in request.query))


def _entry(path, file):
    return {"type": "file", "path": path, "size": file.size, **describe_file(file)}


def list_tree(hub, request, kind, id, revision, folder=None):
    files = hub.store.find(kind, id, hub.user(request)).at(revision).files
    prefix = f"{folder}/" if folder else ""
    recursive = request.query.get("recursive", ["false"])[0].lower() == "true"
    entries = {}
    for path, file in sorted(files.items()):
        parts = path.removeprefix(prefix).split("/")
        if not path.startswith(prefix):
            continue
        for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
            name = prefix + "/".join(parts[:depth])
            entries[name] = {
                "type": "directory",
                "path": name,
                "size": 0,
                "oid": hashlib.sha1(name.encode()).hexdigest(),
            }
        if recursive or len(parts) == 1:
            entries[path] = _entry(path, file)
    if folder and not entries:
        raise Refused(404, f"{folder} does not exist on {revision!r}", "EntryNotFound")
    start = int(request.query.get("cursor", ["0"])[0])
    page, end = list(entries.values())[start : start + hub.page_size], start + hub.page_size
    address = request.path.split("?")[0]
    link = f'<{hub.url}{address}?recursive={recursive}&cursor={end}>; rel="next"'
    return Reply(page, headers={"Link": link} if end < len(entries) else {})


def paths_info(hub, request, kind, id, revision):
    files = hub.store.find(kind, id, hub.user(request)).at(revision).files
    wanted = parse_qs(request.body.decode()).get("paths", [])
    return Reply([_entry(path, files[path]) for path in wanted if path in files])


def list_refs(hub, request, kind, id):
    repository = hub.store.find(kind, id, hub.user(request))

    def listed(refs, prefix):
        return [{"name": n, "ref": prefix + n, "targetCommit": c.oid} for n, c in refs.items()]

    branches, tags = listed(repository.branches, "refs/heads/"), listed(repository.tags, "refs/tags/")
    return Reply({"branches": branches, "tags": tags, "converts": [], "pullRequests": listed(repository.pulls, "")})


def list_commits(hub, request, kind, id, revision):
    commit, found = hub.store.find(kind, id, hub.user(request)).at(revision), []
    while commit is not None:
        found.append(
            {
                "id": commit.oid,
                "title": commit.title,
                "message": "",
                "date": DATE,
                "authors": [{"user": commit.author}],
            }
        )
        commit = commit.parent
    return Reply(found)


def add_branch(hub, request, kind, id, name):
    repository = hub.store.find(kind, id, hub.user(request), write=True)
    if name in repository.branches:
        raise Refused(409, f"Reference already exists: {name}")
    repository.branches[name] = repository.at(json.loads(request.body or b"{}").get("startingPoint", "main"))
    return Reply({})


def add_tag(hub, request, kind, id, name):
    repository, tag = hub.store.find(kind, id, hub.user(request), write=True), json.loads(request.body)["tag"]
    if tag in repository.tags:
        raise Refused(409, f"Tag already exists: {tag}")
    repository.tags[tag] = repository.at(name)
    return Reply({})


def remove_ref(hub, request, kind, id, sort, name):
    repository = hub.store.find(kind, id, hub.user(request), write=True)
    refs = repository.branches if sort == "branch" else repository.tags
    if refs.pop(name, None) is None:
        raise Refused(404, f"{name} does not exist", "RevisionNotFound")
    return Reply({})


def resolve(hub, request, kind, id, revision, path):
    commit = hub.store.find(kind, id, hub.user(request)).at(revision)
    headers = {"X-Repo-Commit": commit.oid, "Accept-Ranges": "bytes"}
    if path not in commit.files:
        return Reply({"error": "Entry not found"}, 404, {**headers, "X-Error-Code": "EntryNotFound"})
    file = commit.files[path]
    if file.sha256 is None:
        return _part_of(file.content, request, {**headers, "ETag": f'"{file.oid}"'})
    linked = {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(file.size)}
    return Reply(b"", 302, {**headers, **linked, "Location": f"{hub.cdn}/blob/{file.sha256}?signature=presigned"})


def send_blob(hub, request, name):
    path = hub.store.path(name)
    if not path.is_file():
        raise Refused(404, "No such object")
    return _part_of(path.read_bytes(), request, {"ETag": f'"{name}"', "Accept-Ranges": "bytes"})


def _part_of(content: bytes, request: Request, headers: dict[str, str]) -> Reply:
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
    if not asked or request.method == "HEAD":
        return Reply(content, 200, headers)
    start, end = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
    if start >= len(content):
        return Reply(b"", 416, {**headers, "Content-Range": f"bytes */{len(content)}"})
    return Reply(content[start : end + 1], 206, {**headers, "Content-Range": f"bytes {start}-{end}/{len(content)}"})


_API = rf"/api/(?P<kind>models|datasets|spaces)/{REPO}"
_GIT = rf"/(?P<kind>datasets/|spaces/)?{REPO}"
_RESOLVE = rf"{_GIT}/resolve/(?P<revision>[^/]+)/(?P<path>.+)"
_REVISION = "(?P<revision>[^/]+)"
ROUTES = [
    ("hub", "GET", "/api/whoami-v2", whoami),
    ("hub", "POST", "/api/repos/create", create_repo),
    ("hub", "DELETE", "/api/repos/delete", delete_repo),
    ("hub", "POST", "/api/repos/move", move_repo),
    ("hub", "POST", "/api/validate-yaml", validate_yaml),
    ("hub", "PUT", f"{_API}/settings", change_settings),
    ("hub", "POST", f"{_API}/preupload/{_REVISION}", preupload),
    ("hub", "POST", rf"{_GIT}\.git/info/lfs/objects/batch", lfs_batch),
    ("hub", "POST", rf"{_GIT}\.git/info/lfs/verify", lfs_verify),
    ("hub", "POST", r"/complete/(?P<oid>\w+)", complete_upload),
    ("hub", "POST", f"{_API}/commit/{_REVISION}", commit_files),
    ("hub", "GET", f"{_API}/tree/(?P<revision>[^/]+)(/(?P<folder>.+))?", list_tree),
    ("hub", "POST", f"{_API}/paths-info/{_REVISION}", paths_info),
    ("hub", "GET", f"{_API}/refs", list_refs),
    ("hub", "GET", f"{_API}/commits/{_REVISION}", list_commits),
    ("hub", "POST", f"{_API}/branch/(?P<name>[^/]+)", add_branch),
    ("hub", "POST", f"{_API}/tag/(?P<name>[^/]+)", add_tag),
    ("hub", "DELETE", f"{_API}/(?P<sort>branch|tag)/(?P<name>[^/]+)", remove_ref),
    ("hub", "GET", f"{_API}/revision/{_REVISION}", repo_info),
    ("hub", "GET", _API, repo_info),
    ("hub", "HEAD", _RESOLVE, resolve),
    ("hub", "GET", _RESOLVE, resolve),
    ("cdn", "PUT", r"/upload/(?P<name>[\w.]+)", store_upload),
    ("cdn", "GET", r"/blob/(?P<name>\w+)", send_blob),
    ("cdn", "HEAD", r"/blob/(?P<name>\w+)", send_blob),
]
