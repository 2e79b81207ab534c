"""Push and pull, each with checksums compared afterwards."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import huggingface_hub
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import LocalEntryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile

from .. import __version__
from . import contents
from .client import Call, HubError, explain, no_token


@dataclass(frozen=True)
class Push:
    """What a push has sent, or would send."""

    repo_id: str
    branch: str
    sent: dict[str, int] = field(default_factory=dict)  # bytes by file name
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    commit: str | None = None  # None: nothing has been sent
    url: str | None = None
    note: str = ""


def create(
    repo_id: str, *, private: bool | None = None, token: str | None = None, timeout: float | None = None
) -> str:
    """Makes a repository unless it is there, and returns its full name."""
    call = Call(f"creating {repo_id}", timeout, token)
    if token is None and huggingface_hub.get_token() is None:
        raise HubError(f"{call.what}: {no_token()}")
    return call.run(lambda _: _api(token).create_repo(repo_id, private=private, exist_ok=True).repo_id)


def push(
    source,
    repo_id: str,
    *,
    private: bool | None = None,
    branch: str | None = None,
    tag: str | None = None,
    message: str = "Upload with hf_efficient",
    path_in_repo: str = "",
    left_out: Iterable[str] = contents.LEFT_OUT,
    allow_tokens: bool = False,
    token: str | None = None,
    dry_run: bool = False,
    timeout: float | None = None,
    spent: float = 0.0,
    kind: str = "model",
) -> Push:
    """Shares a folder, a model or processor (anything with `save_pretrained`), or a list of these in one commit.

    The repository, and the branch, are made if need be. Files that are there already are not sent again, and if
    nothing has changed there is no commit; weights of another number of shards are removed. Afterwards the checksums
    that the Hub states are compared with the files. `private=True` never writes to a public repository. A file that
    holds a token is refused: always if it is yours, and what looks like somebody else's unless `allow_tokens`.

    `timeout`: seconds for all of it, including retries; by default 120, and one more for each MiB. `spent`: those that
    are over already, of a deadline for several pushes. `kind`: of the repository, "model" or "space".
    """
    with _as_folder(source) as folder:
        prefix = f"{path_in_repo.strip('/')}/" if path_in_repo else ""
        files = {prefix + name: path for name, path in contents.list_files(folder, left_out).items()}
        contents.refuse_token(files, token, allow_tokens)
        contents.refuse_hostile_files(folder)
        upload = _Upload(_api(token), repo_id, files, kind)
        call = Call(f"pushing to {repo_id}", timeout, token)
        call.allow(sum(path.stat().st_size for path in files.values()))
        call.spend(spent)
        if dry_run:
            return upload.preview(call, branch or "main")
        if token is None and huggingface_hub.get_token() is None:
            raise HubError(f"{call.what}: {no_token()}")
        return call.run(lambda _: upload.send(private, branch, tag, message))


@contextmanager
def _as_folder(source) -> Iterator[Path]:
    """The folder itself, or a temporary one with what the models and processors save."""
    if isinstance(source, str | Path):
        yield Path(source)
        return
    with tempfile.TemporaryDirectory() as folder:
        for part in source if isinstance(source, list | tuple) else [source]:
            part.save_pretrained(folder)
        yield Path(folder)


def _api(token: str | None) -> HfApi:
    return HfApi(token=token, library_name="hf_efficient", library_version=__version__)


class _Upload:
    """Files on their way to a repository. What is there already is looked up anew each time, so it can be repeated."""

    def __init__(self, api: HfApi, repo_id: str, files: dict[str, Path], kind: str):
        self.api, self.repo_id, self.files, self.kind = api, repo_id, files, kind

    def send(self, private: bool | None, branch: str | None, tag: str | None, message: str) -> Push:
        sdk = {"space_sdk": "gradio"} if self.kind == "space" else {}
        made = self.api.create_repo(self.repo_id, private=private, exist_ok=True, repo_type=self.kind, **sdk)
        self.repo_id = made.repo_id
        if private and not self.info().private:
            raise HubError("private=True, but the repository is public. Change that on its page, or take another.")
        if branch:
            self.api.create_branch(self.repo_id, branch=branch, exist_ok=True, repo_type=self.kind)
        plan, head = self.plan(branch or "main")
        changed = bool(plan.sent or plan.removed)
        tagged = self.commit_of(tag) if tag else None
        if tagged and (changed or tagged != head):
            raise HubError(f"the tag {tag!r} stands for {tagged[:8]} already, and tags don't move. Take another name.")
        commit = self.commit(plan, head, message) if changed else head
        if tag and not tagged:
            self.api.create_tag(self.repo_id, tag=tag, revision=commit, repo_type=self.kind)
        if wrong := contents.differing(self.files, self.checksums(commit)):
            raise HubError(f"the Hub states another checksum for {', '.join(wrong)}. Push again.", transient=True)
        url = f"{self.api.endpoint}/{'' if self.kind == 'model' else self.kind + 's/'}{self.repo_id}/tree/{commit}"
        return Push(self.repo_id, plan.branch, plan.sent, plan.unchanged, plan.removed, commit, url)

    def preview(self, call: Call, branch: str) -> Push:
        """What would be sent; compared with what is there if the Hub can be asked."""
        try:
            return call.run(lambda _: self.plan(branch)[0])
        except HubError as error:
            sizes = {name: path.stat().st_size for name, path in self.files.items()}
            return Push(self.repo_id, branch, sizes, note=f"not compared with what is there: {error}")

    def plan(self, branch: str) -> tuple[Push, str]:
        """What there is to do on a branch, and its last commit."""
        head = self.info(branch).sha
        remote = list_remote(self.api, self.repo_id, head, self.kind)
        checksums = contents.expected(remote)
        unchanged = [n for n, path in self.files.items() if n in checksums and contents.is_intact(path, checksums[n])]
        sent = {name: path.stat().st_size for name, path in self.files.items() if name not in unchanged}
        return Push(self.repo_id, branch, sent, unchanged, contents.stale_weights(remote, self.files)), head

    def commit(self, plan: Push, head: str, message: str) -> str:
        additions = [CommitOperationAdd(name, self.files[name]) for name in plan.sent]
        deletions = [CommitOperationDelete(name) for name in plan.removed]
        # `parent_commit`: if the answer to a commit is lost, repeating it must not make a second one.
        return self.api.create_commit(
            self.repo_id,
            deletions + additions,
            commit_message=message,
            revision=plan.branch,
            parent_commit=head,
            repo_type=self.kind,
        ).oid

    def info(self, revision: str | None = None):
        return self.api.repo_info(self.repo_id, revision=revision, repo_type=self.kind)

    def commit_of(self, revision: str) -> str | None:
        try:
            return self.info(revision).sha
        except RevisionNotFoundError:
            return None

    def checksums(self, commit: str) -> dict[str, str]:
        remote = contents.expected(list_remote(self.api, self.repo_id, commit, self.kind))
        return {name: remote.get(name, "missing") for name in self.files}


def list_remote(api: HfApi, repo_id: str, revision: str, kind: str = "model") -> dict[str, RepoFile]:
    entries = api.list_repo_tree(repo_id, recursive=True, revision=revision, repo_type=kind)
    return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}


def pull(
    repo_id: str,
    revision: str = "main",
    *,
    local_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    token: str | None = None,
    timeout: float | None = None,
) -> Path:
    """Downloads a repository at a branch, tag or, best of all, commit, and returns its folder.

    Every file is compared with its checksum; a damaged one is thrown away and fetched again, and never handed out.
    What is in the cache is not downloaded again. With HF_HUB_OFFLINE=1 only the cache is asked.

    `timeout`: seconds for all of it, including retries; by default 120, and one more for each MiB.
    """
    download = _Download(_api(token), repo_id, revision)
    call = Call(f"pulling {repo_id} at {revision}", timeout, token)
    if huggingface_hub.is_offline_mode():
        folder = download.from_cache(call, cache_dir)
    else:
        folder = call.run(lambda call: download.fetch(call, local_dir, cache_dir))
    contents.refuse_hostile_files(folder)
    return folder


class _Download:
    def __init__(self, api: HfApi, repo_id: str, revision: str):
        self.api, self.repo_id, self.revision = api, repo_id, revision

    def fetch(self, call: Call, local_dir: str | Path | None, cache_dir: str | Path | None) -> Path:
        commit = self.api.model_info(self.repo_id, revision=self.revision).sha
        remote = list_remote(self.api, self.repo_id, commit)
        contents.refuse_hostile_names(remote)
        call.allow(sum(file.size for file in remote.values()))
        # By its own name where it goes into the cache, so that the cache knows later what that name stood for.
        revision = commit if local_dir else self.revision
        folder = Path(
            self.api.snapshot_download(self.repo_id, revision=revision, local_dir=local_dir, cache_dir=cache_dir)
        )
        if not local_dir and folder.name != commit:
            raise HubError(f"{self.revision} has moved while it was downloaded.", transient=True)
        self.discard(folder, contents.differing({name: folder / name for name in remote}, contents.expected(remote)))
        return folder

    def from_cache(self, call: Call, cache_dir: str | Path | None) -> Path:
        try:
            path = self.api.snapshot_download(
                self.repo_id, revision=self.revision, cache_dir=cache_dir, local_files_only=True
            )
        except LocalEntryNotFoundError:
            raise HubError(f"{call.what}: it is not in the cache, and HF_HUB_OFFLINE is set.") from None
        except Exception as error:
            raise HubError(f"{call.what}: {explain(error)}", token=call.token) from None
        folder = Path(path)
        # Files of a snapshot are links to blobs that are named after their checksums.
        links = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_symlink()}
        self.discard(folder, contents.differing(links, {name: p.resolve().name for name, p in links.items()}))
        return folder

    def discard(self, folder: Path, damaged: list[str]) -> None:
        for name in damaged:
            path = folder / name
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        if damaged:
            raise HubError(f"{', '.join(damaged)} arrived damaged: another checksum. Thrown away.", transient=True)


def verify(
    folder: str | Path, repo_id: str, revision: str = "main", *, token: str | None = None, timeout: float | None = None
) -> int:
    """Compares the files of a folder with the checksums that the Hub states; returns how many there are.

    HubError names those that are missing or differ. Files that the repository does not have are not looked at.
    """
    api = _api(token)
    call = Call(f"verifying {folder} against {repo_id} at {revision}", timeout, token)
    checksums = contents.expected(call.run(lambda _: list_remote(api, repo_id, revision)))
    wrong = contents.differing({name: Path(folder) / name for name in checksums}, checksums)
    if wrong:
        raise HubError(f"{call.what}: missing or different: {', '.join(wrong)}.")
    return len(checksums)
