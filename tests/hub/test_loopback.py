"""The loopback Hub itself: every endpoint that the client calls answers it as the Hub would."""

import pytest
from loopback import Hub
from loopback_card import validate_card
from loopback_client import ClientError


def test_only_this_machine_can_reach_it(tmp_path):
    with Hub(tmp_path) as hub:
        assert {origin.server_address[0] for origin in hub.origins.values()} == {"127.0.0.1"}
        assert hub.url != hub.cdn


def test_every_endpoint(client, hub, folder):
    code = f"""
    from huggingface_hub import HfApi, CommitOperationAdd, CommitOperationDelete
    api, folder, found = HfApi(), {str(folder)!r}, {{}}
    found["who"] = api.whoami()["name"], api.whoami()["auth"]["accessToken"]["role"]
    repo = api.create_repo("every", private=True).repo_id
    found["created"] = repo, api.repo_exists(repo), api.model_info(repo).private
    api.update_repo_settings(repo, private=False)
    found["public"] = api.model_info(repo).private
    first = api.upload_folder(repo_id=repo, folder_path=folder, path_in_repo="a", commit_message="one").oid
    api.upload_file(repo_id=repo, path_or_fileobj=b"card", path_in_repo="README.md", commit_message="two")
    found["files"] = api.list_repo_files(repo)
    found["tree"] = [entry.path for entry in api.list_repo_tree(repo)]
    found["inner"] = sorted(entry.path for entry in api.list_repo_tree(repo, path_in_repo="a"))
    found["paths"] = [info.size for info in api.get_paths_info(repo, ["README.md", "none"])]
    api.create_branch(repo, branch="dev", revision=first)
    api.create_tag(repo, tag="v1", revision="dev")
    refs = api.list_repo_refs(repo)
    found["refs"] = [b.name for b in refs.branches], [t.name for t in refs.tags]
    api.delete_file("a/config.json", repo_id=repo, revision="dev")
    api.delete_folder("a", repo_id=repo, revision="dev")
    found["deleted"] = api.list_repo_files(repo, revision="dev")
    found["kept"] = sorted(api.list_repo_files(repo, revision="v1"))
    api.delete_branch(repo, branch="dev")
    api.delete_tag(repo, tag="v1")
    found["titles"] = [c.title for c in api.list_repo_commits(repo)]
    addition = CommitOperationAdd("new.txt", b"1")
    pull = api.create_commit(repo, [addition], commit_message="a wish", create_pr=True)
    found["pull"] = pull.pr_num, "new.txt" in api.list_repo_files(repo, revision="refs/pr/1")
    found["main"] = api.file_exists(repo, "new.txt"), api.file_exists(repo, "README.md")
    found["sum"] = len(api.verify_repo_checksums(repo, local_dir=api.snapshot_download(repo)).mismatches)
    api.move_repo(repo, "alice/moved")
    found["moved"] = api.repo_exists("alice/moved"), api.repo_exists(repo)
    api.delete_repo("alice/moved")
    found["gone"] = api.repo_exists("alice/moved")
    data = api.create_repo("data", repo_type="dataset").repo_id
    api.upload_file(repo_id=data, repo_type="dataset", path_or_fileobj=b"x" * 99, path_in_repo="x.bin")
    found["dataset"] = len(open(api.hf_hub_download(data, "x.bin", repo_type="dataset"), "rb").read())
    result = found
    """
    found = client.run(code)
    files = ["a/config.json", "a/model.safetensors"]
    assert found == {
        "who": ["alice", "write"],
        "created": ["alice/every", True, True],
        "public": False,
        "files": [".gitattributes", "README.md", *files],
        "tree": [".gitattributes", "README.md", "a"],
        "inner": files,
        "paths": [4],
        "refs": [["main", "dev"], ["v1"]],
        "deleted": [".gitattributes"],
        "kept": [".gitattributes", *files],
        "titles": ["two", "one", "initial commit"],
        "pull": [1, True],
        "main": [False, True],
        "sum": 0,
        "moved": [True, False],
        "gone": False,
        "dataset": 99,
    }


def test_a_commit_on_something_else_than_it_was_made_for_is_refused(client, hub, repo):
    first = hub.plant(repo, {"a.txt": b"1"})
    hub.plant(repo, {"a.txt": b"2"})
    code = f"""
    from huggingface_hub import HfApi, CommitOperationAdd
    addition = CommitOperationAdd("a.txt", b"3")
    HfApi().create_commit({repo!r}, [addition], commit_message="x", parent_commit={first!r})
    """
    with pytest.raises(ClientError, match="412"):
        client.run(code)
    assert hub.bytes_of(repo, "a.txt") == b"2"


@pytest.mark.parametrize(
    ("card", "complaint"),
    [
        ("---\ntags: [a, b]\nco2_eq_emissions: {emissions: 1.5, source: x}\n---\n", None),
        ("---\nmodel-index: [{name: m, results: []}]\n---\n", None),
        ("---\na: [\n---\n", "not YAML"),
        ("---\n- a\n---\n", "must be a mapping"),
        ("---\nlicense: [mit]\n---\n", '"license" must be a string'),
        ("---\ndatasets: {a: 1}\n---\n", '"datasets" must be a string or a list'),
        ("---\nmodel-index: [{results: []}]\n---\n", "name"),
        ("---\nmodel-index: [{name: m, results: [{task: {}}]}]\n---\n", "task.type"),
        ("---\nco2_eq_emissions: {source: x}\n---\n", "number of grams"),
    ],
)
def test_17_cards_are_judged(card, complaint):
    errors, _ = validate_card(card)
    assert (not errors) if complaint is None else complaint in " ".join(errors)


def test_an_unknown_fault_is_an_error(hub):
    with pytest.raises(ValueError, match="no fault is called 'explode'"):
        hub.fail("explode", "GET", "/")
