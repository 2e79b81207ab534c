"""What a loopback Hub keeps: users, repositories with their commits, branches and tags, and large files on disk."""

import fnmatch
import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

GITATTRIBUTES = "".join(
    f"*.{suffix} filter=lfs diff=lfs merge=lfs -text\n"
    for suffix in ("bin", "onnx", "pt", "pth", "safetensors", "zip")
).encode()
LARGE = 10 * 2**20  # bytes from which any file is a large one
TASKS = {
    "ForImageClassification": "image-classification",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForObjectDetection": "object-detection",
    "ForSemanticSegmentation": "image-segmentation",
}


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True)
class User:
    name: str
    role: str  # "read" or "write"


@dataclass(frozen=True)
class File:
    """An entry of a commit; a large file's bytes are in the storage under its sha256."""

    size: int
    oid: str  # git's, of what is committed: the bytes, or a pointer to them
    content: bytes | None = None
    sha256: str | None = None

    @property
    def etag(self) -> str:
        return self.sha256 or self.oid


@dataclass(frozen=True)
class Commit:
    oid: str
    title: str
    author: str
    parent: "Commit | None"
    files: dict[str, File]


@dataclass
class Repository:
    id: str
    kind: str  # "model", "dataset" or "space"
    private: bool
    branches: dict[str, Commit] = field(default_factory=dict)
    tags: dict[str, Commit] = field(default_factory=dict)
    pulls: dict[str, Commit] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        return self.id.split("/")[0]

    def commits(self) -> dict[str, Commit]:
        found = {}
        for commit in (*self.branches.values(), *self.tags.values(), *self.pulls.values()):
            while commit is not None and commit.oid not in found:
                found[commit.oid] = commit
                commit = commit.parent
        return found

    def at(self, revision: str) -> Commit:
        for refs in (self.branches, self.tags, self.pulls, self.commits()):
            if revision in refs:
                return refs[revision]
        raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def add(self, branch: str, title: str, author: str, files: dict[str, File], pull: bool = False) -> Commit:
        parent = self.branches.get(branch) or self.pulls.get(branch)
        identity = repr((self.id, title, parent and parent.oid, len(self.commits()), sorted(files))).encode()
        commit = Commit(hashlib.sha1(identity).hexdigest(), title, author, parent, files)
        if pull:
            self.pulls[f"refs/pr/{len(self.pulls) + 1}"] = commit
        else:
            (self.pulls if branch in self.pulls else self.branches)[branch] = commit
        return commit


class Store:
    def __init__(self, folder: Path):
        self.folder = folder
        self.users: dict[str, User] = {}  # by token
        self.repositories: dict[tuple[str, str], Repository] = {}  # by kind and id

    def token(self, name: str, role: str = "write") -> str:
        """A new token of a user."""
        token = "hf_" + hashlib.sha256(f"{name} {role} {len(self.users)}".encode()).hexdigest()[:34]
        self.users[token] = User(name, role)
        return token

    def create(self, kind: str, repo_id: str, private: bool, author: str) -> Repository:
        if (kind, repo_id) in self.repositories:
            raise Refused(409, "You already created this model repo")
        repository = self.repositories[kind, repo_id] = Repository(repo_id, kind, private)
        repository.add("main", "initial commit", author, {".gitattributes": small_file(GITATTRIBUTES)})
        return repository

    def find(self, kind: str, repo_id: str, user: User | None, write: bool = False) -> Repository:
        """The repository, if the user may see it, or write to it."""
        repository = self.repositories.get((kind, repo_id))
        mine = repository is not None and user is not None and user.name == repository.owner
        if repository is None or (repository.private and not mine):
            raise Refused(404 if user else 401, "Repository not found", "RepoNotFound")
        if write:
            self.check_writes(user, repository.owner)
        return repository

    def check_writes(self, user: User | None, owner: str) -> None:
        if user is None:
            raise Refused(401, "Invalid username or password.")
        if user.role != "write" or user.name != owner:
            raise Refused(403, f"You don't have the rights to write to {owner} with this token")

    # Large files

    def path(self, sha256: str) -> Path:
        return self.folder / sha256

    def is_intact(self, sha256: str) -> bool:
        path = self.path(sha256)
        return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256

    def read(self, file: File) -> bytes:
        return file.content if file.sha256 is None else self.path(file.sha256).read_bytes()


def small_file(content: bytes) -> File:
    return File(len(content), git_oid(content), content=content)


def large_file(sha256: str, size: int) -> File:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
    return File(size, git_oid(pointer.encode()), sha256=sha256)


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_large(commit: Commit, path: str, size: int) -> bool:
    attributes = commit.files.get(".gitattributes")
    lines = attributes.content.decode().splitlines() if attributes else []
    patterns = [line.split()[0] for line in lines if "filter=lfs" in line]
    return size > LARGE or any(fnmatch.fnmatch(path.rsplit("/", 1)[-1], pattern) for pattern in patterns)


def card_metadata(text: str) -> dict | None:
    """The YAML at the head of a card; None if there is none."""
    import yaml

    match = re.match(r"---\r?\n(.*?)\r?\n---(\r?\n|$)", text, re.DOTALL)
    return (yaml.safe_load(match[1]) or {}) if match else None


def describe(store: Store, repository: Repository, commit: Commit, blobs: bool) -> dict:
    """What the Hub tells about a repository; task and library come from the card, or else from the config."""
    metadata, config = {}, {}
    if "README.md" in commit.files:
        metadata = card_metadata(store.read(commit.files["README.md"]).decode()) or {}
    if "config.json" in commit.files:
        config = json.loads(store.read(commit.files["config.json"]))
    architecture = (config.get("architectures") or [""])[0]
    task = next((task for suffix, task in TASKS.items() if architecture.endswith(suffix)), None)
    siblings = [
        {"rfilename": path, **(({"size": file.size} | describe_file(file)) if blobs else {})}
        for path, file in sorted(commit.files.items())
    ]
    return {
        "id": repository.id,
        "author": repository.owner,
        "sha": commit.oid,
        "private": repository.private,
        "gated": False,
        "disabled": False,
        "tags": metadata.get("tags") or [],
        "pipeline_tag": metadata.get("pipeline_tag") or task,
        "library_name": metadata.get("library_name") or ("transformers" if config else None),
        "cardData": metadata,
        "siblings": siblings,
    }


def describe_file(file: File) -> dict:
    large = {"oid": file.sha256, "sha256": file.sha256, "size": file.size, "pointerSize": 130}
    return {"oid": file.oid, "blobId": file.oid, **({"lfs": large} if file.sha256 else {})}
