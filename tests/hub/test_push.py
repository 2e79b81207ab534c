"""Pushing to a Hub that works: what is sent, what is not, and what is never sent."""

import json

import pytest
from hub_cases import write_model
from loopback_client import ClientError


def push(client, folder, repo, options=""):
    return client.run(f"result = vars(hub.push({str(folder)!r}, {repo!r}, {options}))")


@pytest.mark.parametrize("private", [True, False])
def test_a_folder_comes_back_bit_equal(client, hub, repo, folder, private):
    sent = push(client, folder, repo, f"private={private}, message='First'")
    assert hub.store.repositories["model", repo].private is private
    assert sent["commit"] == hub.head(repo).oid and hub.head(repo).title == "First"
    assert sent["sent"] == {path.name: path.stat().st_size for path in folder.iterdir()}
    pulled = client.run(f"result = hub.pull({repo!r}, {sent['commit']!r})")
    assert pulled.endswith(sent["commit"])
    for path in folder.iterdir():
        assert (folder.parent / pulled / path.name).read_bytes() == path.read_bytes()
    assert client.run(f"result = hub.verify({pulled!r}, {repo!r})") == 3  # with .gitattributes


def test_03_pushed_twice_there_is_no_second_commit(client, hub, repo, folder):
    first = push(client, folder, repo)
    hub.mend()
    second = push(client, folder, repo)
    assert second["commit"] == first["commit"] == hub.head(repo).oid
    assert second["sent"] == {} and sorted(second["unchanged"]) == ["config.json", "model.safetensors"]
    assert not hub.seen("POST", "/commit/") and not hub.seen("PUT")


def test_only_what_has_changed_is_sent(client, hub, repo, folder):
    push(client, folder, repo)
    hub.mend()
    (folder / "config.json").write_text("{}")
    assert push(client, folder, repo)["sent"] == {"config.json": 2}
    assert not hub.seen("PUT")
    assert len(hub.store.repositories["model", repo].commits()) == 3  # the Hub's own, and two


def test_a_branch_leaves_main_alone_and_a_tag_stays(client, hub, repo, folder):
    main = push(client, folder, repo, "tag='v1'")
    (folder / "config.json").write_text("{}")
    branch = push(client, folder, repo, "branch='exp/a', tag='v2'")
    assert hub.head(repo).oid == hub.head(repo, "v1").oid == main["commit"]
    assert hub.head(repo, "exp/a").oid == hub.head(repo, "v2").oid == branch["commit"] != main["commit"]
    for revision, commit in [("exp/a", branch), ("v1", main), ("v2", branch)]:
        assert client.run(f"result = hub.pull({repo!r}, {revision!r})").endswith(commit["commit"])
    assert push(client, folder, repo, "branch='exp/a', tag='v2'")["commit"] == branch["commit"]
    (folder / "config.json").write_text('{"a": 1}')
    with pytest.raises(ClientError, match=r"the tag 'v1' stands for .* already"):
        push(client, folder, repo, "tag='v1'")
    assert hub.head(repo).oid == main["commit"], "refused before anything was sent"


def test_large_files_go_in_parts_and_long_listings_in_pages(client, hub, repo, folder):
    hub.multipart_over, hub.page_size = 64 * 1024, 1
    push(client, folder, repo)
    assert len(hub.seen("PUT")) == 4
    assert hub.bytes_of(repo, "model.safetensors") == (folder / "model.safetensors").read_bytes()
    client.run(f"hub.pull({repo!r})")


def test_weights_that_would_be_loaded_instead_are_removed(client, hub, repo, folder, tmp_path):
    push(client, folder, repo)
    shards = tmp_path / "shards"
    shards.mkdir()
    for i in (1, 2):
        (shards / f"model-0000{i}-of-00002.safetensors").write_bytes(bytes([i]))
    weight_map = {f"w{i}": f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    (shards / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (shards / "notes.txt").write_text("mine")
    assert push(client, shards, repo)["removed"] == ["model.safetensors"]
    assert "model.safetensors" not in hub.head(repo).files and "config.json" in hub.head(repo).files
    assert push(client, folder, repo)["removed"] == sorted(p.name for p in shards.iterdir() if p.name != "notes.txt")
    assert "notes.txt" in hub.head(repo).files


def test_what_a_run_leaves_behind_stays_at_home(client, hub, repo, folder):
    for name in ("training_args.bin", "optimizer.pt", "checkpoint-5/model.safetensors", ".env", "a/__pycache__/b.pyc"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    push(client, folder, repo)
    assert set(hub.head(repo).files) == {".gitattributes", "config.json", "model.safetensors"}


def test_a_dry_run_shows_and_sends_nothing(client, hub, repo, folder):
    shown = push(client, folder, repo, "dry_run=True, private=True")
    assert set(shown["sent"]) == {"config.json", "model.safetensors"} and shown["commit"] is None
    assert "no such repository" in shown["note"]
    push(client, folder, repo)
    hub.mend()
    (folder / "config.json").write_text("{}")
    shown = push(client, folder, repo, "dry_run=True")
    assert shown["sent"] == {"config.json": 2} and shown["unchanged"] == ["model.safetensors"] and not shown["note"]
    assert not hub.writes()


def test_private_never_writes_to_a_public_repository(client, hub, repo, folder):
    push(client, folder, repo, "private=False")
    (folder / "config.json").write_text("{}")
    with pytest.raises(ClientError, match="private=True, but the repository is public"):
        push(client, folder, repo, "private=True")
    assert hub.bytes_of(repo, "config.json") != b"{}"


def test_14_a_file_with_the_token_is_refused(client, hub, repo, folder):
    (folder / "notes.bin").write_bytes(b"\0" * (2**20 - 5) + hub.alice.encode() + b"\0")  # across two chunks
    with pytest.raises(ClientError, match=r"notes\.bin holds your token, so nothing has been sent") as raised:
        push(client, folder, repo)
    assert hub.alice not in raised.value.traceback + client.stderr()
    assert not hub.requests


def test_14_a_file_with_the_token_of_somebody_else_is_refused(client, hub, repo, folder):
    for prefix in ("hf_", "api_org_"):
        (folder / "notes.txt").write_text(f"token: {prefix}{'aB3' * 11}z\n")
        with pytest.raises(ClientError, match=r"notes\.txt holds what looks like somebody's token .*allow_tokens"):
            push(client, folder, repo)
    assert not hub.requests
    (folder / "words.txt").write_text("hf_efficient hf_" + "a" * 60)  # nothing like one
    assert "notes.txt" in push(client, folder, repo, "allow_tokens=True")["sent"]


def test_links_that_lead_out_of_the_folder_are_not_shared(client, hub, repo, folder):
    (folder.parent / "secret.txt").write_text("mine")
    (folder / "notes.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "also.json").symlink_to("config.json")
    (folder / "home").symlink_to(folder.parent)
    assert set(push(client, folder, repo)["sent"]) == {"config.json", "model.safetensors", "also.json"}
    assert "notes.txt ->" in client.stderr()
    pulled = client.run(f"result = hub.pull({repo!r})")  # whose files are links to the blobs of the cache
    assert "model.safetensors" in push(client, pulled, f"{repo}-again")["sent"]


def test_12_the_token_reaches_no_other_origin(client, hub, repo, folder):
    push(client, folder, repo, "private=True")
    client.run(f"hub.pull({repo!r})")
    assert {r.origin for r in hub.requests} == {"hub", "cdn"}
    assert all("authorization" not in r.headers for r in hub.requests if r.origin == "cdn")
    assert hub.leaks(hub.alice) == []


def test_a_leak_would_be_seen(hub):
    hub.plant("alice/leak", {"README.md": f"my token is {hub.alice}".encode()})
    assert len(hub.leaks(hub.alice)) == 1
    del hub.store.repositories["model", "alice/leak"]
    assert hub.leaks(hub.alice) == []


def test_13_hostile_names_are_refused_and_nothing_is_written(client, hub, tmp_path):
    for i, name in enumerate(["../evil.txt", "/evil.txt", "a\\..\\evil.txt", "a/../../evil.txt", "C:evil.txt"]):
        hub.plant(f"alice/hostile-{i}", {name: b"evil", "config.json": b"{}"})
        cache = tmp_path / str(i)
        with pytest.raises(ClientError, match=r"lies outside of it\. Nothing has been written"):
            client.run(f"hub.pull('alice/hostile-{i}', cache_dir={str(cache)!r})")
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("shard", ["../out/x.safetensors", "/tmp/x.safetensors", "..\\x.safetensors"])
def test_13_hostile_names_in_a_shard_index_are_refused(client, hub, repo, tmp_path, shard):
    index = json.dumps({"metadata": {}, "weight_map": {"weight": shard}})
    hub.plant(repo, {"model.safetensors.index.json": index.encode()})
    with pytest.raises(ClientError, match="lies outside the folder; it will not be loaded"):
        client.run(f"hub.pull({repo!r})")
    folder = write_model(tmp_path / "model")
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ClientError, match="lies outside the folder; it will not be loaded"):
        push(client, folder, repo)


OUTSIDE = {  # all of which transformers 5 would read, but for the last
    "another tokenizer.json": ("tokenizer_config.json", {"fast_tokenizer_files": ["../out/tokenizer.4.0.json"]}),
    "a vocabulary": ("tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "vocab": "/etc/passwd"}),
    "arguments": ("tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", "init_inputs": ["/etc/passwd"]}),
    "a special token": ("special_tokens_map.json", {"tokenizer_file": "../out/tokenizer.json"}),
    "whatever is where it runs": ("special_tokens_map.json", {"vocab_file": "secrets.txt"}),
    "a vocabulary's file": ("tokenizer_config.json", {"vocab_file": "..\\vocab.json"}),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_13_tokenizers_that_name_files_outside_are_refused(client, hub, repo, tmp_path, name):
    file, fields = OUTSIDE[name]
    hub.plant(repo, {f"inner/{file}": json.dumps(fields).encode(), "config.json": b"{}"})
    with pytest.raises(ClientError, match=rf"{file}: \w+ names .*, no file of the folder; it will not be loaded"):
        client.run(f"hub.pull({repo!r})")
    folder = write_model(tmp_path / "model")
    (folder / file).write_text(json.dumps(fields))
    with pytest.raises(ClientError, match="no file of the folder; it will not be loaded"):
        push(client, folder, repo)


def test_tokenizers_that_name_their_own_files_are_none_of_these(client, hub, repo, folder):
    names = {"fast_tokenizer_files": ["tokenizer.json"], "vocab_file": None, "vocab": ["/", ".."], "eos_token": "/s"}
    old = {"special_tokens_map_file": "/home/author/.cache/x"}
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps(names | old))
    push(client, folder, repo)
    client.run(f"hub.pull({repo!r})")


def test_17_a_card_is_validated_before_anything_is_sent(client, hub, repo, folder):
    (folder / "README.md").write_text("---\ntags: [a]\npipeline_tag: [image-classification]\n---\n# Card\n")
    with pytest.raises(ClientError, match=r'Invalid metadata in README\.md\. - "pipeline_tag" must be a string'):
        push(client, folder, repo)
    assert not hub.seen("PUT")
    (folder / "README.md").write_text("---\ntags: [a]\npipeline_tag: image-classification\n---\n# Card\n")
    push(client, folder, repo)
    assert client.run(f"result = hub.transfer._api(None).model_info({repo!r}).pipeline_tag") == "image-classification"


def test_a_space(client, hub, repo, folder):
    sent = push(client, folder, repo, "kind='space', private=True, branch='dev', tag='v1'")
    assert hub.store.repositories["space", repo].private and ("model", repo) not in hub.store.repositories
    assert sent["commit"] == hub.head(repo, "v1", kind="space").oid
    assert sent["url"] == f"{hub.url}/spaces/{repo}/tree/{sent['commit']}"
    hub.mend()
    again = push(client, folder, repo, "kind='space', branch='dev'")
    assert again["commit"] == sent["commit"] and not hub.seen("POST", "/commit/")
