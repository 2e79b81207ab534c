"""A Hub that fails: what is repeated, what ends with a clear error, and that nothing damaged is ever kept."""

import hashlib
import time
from pathlib import Path

import pytest
from hub_cases import write_model
from loopback_client import Client, ClientError

BLOB = "/blob/"
MIB = 2**20


def push(client, folder, repo, options=""):
    return client.run(f"result = vars(hub.push({str(folder)!r}, {repo!r}, {options}))")


def pull(client, repo, cache, options=""):
    """The sha256 of the file that travels through the CDN, as it arrives."""
    folder = client.run(f"result = hub.pull({repo!r}, cache_dir={str(cache)!r}, {options})")
    return digest((Path(folder) / "model.safetensors").read_bytes())


def digest(content):
    return hashlib.sha256(content).hexdigest()


def plant(hub, repo, size=200_000):
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    hub.plant(repo, {"config.json": b"{}", "model.safetensors": content})
    return digest(content)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/preupload/"), ("POST", "/objects/batch"), ("PUT", "/upload/")]
)
def test_04_unavailable_twice_then_stored_intact(client, hub, repo, folder, method, path):
    hub.fail("status", method, path, status=503, times=2, headers={"Retry-After": "0"})
    push(client, folder, repo)
    for file in folder.iterdir():
        assert hub.bytes_of(repo, file.name) == file.read_bytes()
    assert len(hub.store.repositories["model", repo].commits()) == 2


def test_04_everything_fails_once(client, hub, repo, folder):
    for method, path in [("POST", "/repos/create"), ("GET", "/revision/main"), ("GET", "/tree/"), ("POST", "/verify")]:
        hub.fail("status", method, path, status=502, headers={"Retry-After": "0"})
    push(client, folder, repo)
    assert not any(fault.times for fault in hub.faults)
    assert hub.bytes_of(repo, "model.safetensors") == (folder / "model.safetensors").read_bytes()


def test_05_a_commit_that_fails_once_is_repeated(client, hub, repo, folder):
    hub.fail("status", "POST", "/commit/", status=500)
    commit = push(client, folder, repo)["commit"]
    assert hub.head(repo).oid == commit and len(hub.store.repositories["model", repo].commits()) == 2


def test_05_a_commit_that_always_fails_leaves_the_head_and_the_next_push_succeeds(client, hub, repo, folder):
    hub.fail("status", "POST", "/commit/", status=500, times=99)
    with pytest.raises(ClientError, match="the Hub answered 500") as raised:
        push(client, folder, repo, "timeout=4")
    assert raised.value.kind == "HubError" and "\n" not in raised.value.message
    assert hub.head(repo).title == "initial commit"
    hub.mend()
    push(client, folder, repo)
    assert "model.safetensors" in hub.head(repo).files


@pytest.mark.parametrize("kind", ["reset", "lose_reply"])
def test_a_commit_whose_answer_is_lost_is_made_once(client, hub, repo, folder, kind):
    hub.fail(kind, "POST", "/commit/")
    commit = push(client, folder, repo)["commit"]
    assert hub.head(repo).oid == commit and len(hub.store.repositories["model", repo].commits()) == 2


def test_somebody_elses_commit_in_between_is_kept(client, hub, repo, folder):
    hub.plant(repo, {"theirs.txt": b"1"})
    hub.fail("status", "POST", "/commit/", status=412)
    push(client, folder, repo)
    assert {"theirs.txt", "config.json"} <= set(hub.head(repo).files)


def test_a_truncated_upload_is_noticed_and_repeated(client, hub, repo, folder):
    hub.fail("truncate", "PUT", "/upload/", at=1000)
    push(client, folder, repo)
    assert len(hub.seen("PUT")) == 2
    assert hub.bytes_of(repo, "model.safetensors") == (folder / "model.safetensors").read_bytes()


def test_uploads_that_are_always_truncated_never_become_a_commit(client, hub, repo, folder):
    hub.fail("truncate", "PUT", "/upload/", at=1000, times=99)
    with pytest.raises(ClientError, match="announced sha256"):
        push(client, folder, repo, "timeout=3")
    assert hub.head(repo).title == "initial commit"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/repos/create"),
        ("GET", "/revision/main"),
        ("GET", "/tree/"),
        ("POST", "/preupload/"),
        ("PUT", "/upload/"),
        ("POST", "/commit/"),
    ],
)
def test_06_a_hub_that_hangs_in_a_push_is_an_error_in_time(client, hub, repo, folder, method, path):
    hub.fail("hang", method, path, times=99)
    start = time.monotonic()
    with pytest.raises(ClientError, match="not done within 1 s") as raised:
        push(client, folder, repo, "timeout=1")
    assert time.monotonic() - start < 5
    assert raised.value.kind == "HubError" and "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/revision/main"), ("GET", "/tree/"), ("HEAD", "/resolve/"), ("GET", BLOB)]
)
def test_06_a_hub_that_hangs_in_a_pull_is_an_error_in_time(client, hub, repo, tmp_path, method, path):
    plant(hub, repo)
    hub.fail("hang", method, path, times=99)
    start = time.monotonic()
    with pytest.raises(ClientError, match="not done within 1 s"):
        pull(client, repo, tmp_path, "timeout=1")
    assert time.monotonic() - start < 5


def plant_several(hub, repo):
    """More files than are downloaded at a time, all through the CDN."""
    hub.plant(repo, {f"part-{i:02}.safetensors": bytes([i]) * 100_000 for i in range(12)})


@pytest.mark.parametrize("kind", ["hang", "stall", "drip"])
def test_06_after_the_deadline_no_thread_goes_on(client, hub, repo, tmp_path, kind):
    plant_several(hub, repo)
    hub.fail(kind, "GET", BLOB, times=999, at=1000)
    with pytest.raises(ClientError, match=rf"not done within 2 s \(--timeout, .*; the last problem: .*{hub.cdn}"):
        pull(client, repo, tmp_path, "timeout=2")
    sent = len(hub.requests)
    time.sleep(1.5)
    assert len(hub.requests) == sent
    threads = "import threading; result = [t.name for t in threading.enumerate() if not t.daemon]"
    assert client.run(threads) == ["MainThread"], "the process could end"


def test_06_a_request_that_hangs_leaves_time_for_another(client, hub, repo, tmp_path):
    content = plant(hub, repo)
    hub.fail("hang", "GET", "/tree/")
    assert pull(client, repo, tmp_path, "timeout=12") == content


def test_06_a_timeout_that_is_none_is_named(client, hub, repo, tmp_path):
    for timeout in ("-1", "0", "float('nan')", "float('inf')"):
        with pytest.raises(ClientError, match="must be a number of seconds above 0"):
            pull(client, repo, tmp_path, f"timeout={timeout}")
    assert not hub.requests


@pytest.mark.parametrize("path", ["/revision/main", "/tree/"])
def test_an_answer_that_is_no_text_is_asked_for_again(client, hub, repo, tmp_path, path):
    content = plant(hub, repo)
    hub.fail("garble", "GET", path)
    assert pull(client, repo, tmp_path) == content


def test_an_upload_that_the_hub_does_not_find_is_repeated(client, hub, repo, folder):
    hub.fail("truncate", "PUT", "/upload/", at=1000)
    hub.fail("status", "POST", "/verify", status=404)
    push(client, folder, repo)
    assert len(hub.seen("PUT")) == 2
    assert hub.bytes_of(repo, "model.safetensors") == (folder / "model.safetensors").read_bytes()


def test_06_afterwards_the_client_is_as_before(client, hub, repo, tmp_path):
    """The deadline is that of a push or pull, not of the process."""
    content = plant(hub, repo)
    hub.fail("hang", "GET", "/tree/", times=99)
    with pytest.raises(ClientError, match="not done within 1 s"):
        pull(client, repo, tmp_path, "timeout=1")
    hub.mend()
    assert client.run("import huggingface_hub; result = huggingface_hub.HfApi().whoami()['name']") == "alice"
    assert pull(client, repo, tmp_path) == content


@pytest.mark.parametrize(
    ("kind", "method", "path"),
    [
        ("reset", "GET", "/revision/main"),
        ("reset", "GET", "/tree/"),
        ("reset", "HEAD", "/resolve/"),
        ("reset", "GET", BLOB),
        ("reset_body", "GET", BLOB),
    ],
)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_07_a_reset_in_a_download_is_repeated(client, hub, repo, tmp_path, kind, method, path, warm):
    content = plant(hub, repo)
    if warm:
        pull(client, repo, tmp_path)
    hub.fail(kind, method, path, at=1000)
    assert pull(client, repo, tmp_path) == content


def test_5xx_in_a_download_is_repeated(client, hub, repo, tmp_path):
    content = plant(hub, repo)
    hub.fail("status", "GET", BLOB, status=502, times=2)
    assert pull(client, repo, tmp_path) == content


def test_08_a_flipped_byte_is_detected_and_the_file_fetched_again(client, hub, repo, tmp_path):
    content = plant(hub, repo)
    hub.fail("flip", "GET", BLOB, at=1234)
    assert pull(client, repo, tmp_path) == content
    assert len(hub.seen("GET", BLOB)) == 2


def test_08_a_byte_that_is_always_flipped_is_an_error_and_leaves_nothing_to_load(client, hub, repo, tmp_path):
    plant(hub, repo)
    hub.fail("flip", "GET", BLOB, at=1234, times=99)
    with pytest.raises(ClientError, match=r"model\.safetensors arrived damaged"):
        pull(client, repo, tmp_path, "timeout=3")
    assert not list(tmp_path.rglob("model.safetensors"))


def test_08_a_flipped_byte_in_a_small_file_is_detected(client, hub, repo, tmp_path):
    plant(hub, repo)
    hub.fail("flip", "GET", "/config.json", at=1)
    folder = client.run(f"result = hub.pull({repo!r}, cache_dir={str(tmp_path)!r})")
    assert (tmp_path / folder / "config.json").read_bytes() == b"{}"
    assert len(hub.seen("GET", "/config.json")) == 2


def test_08_verify_names_what_differs(client, hub, repo, folder):
    push(client, folder, repo)
    (folder / ".gitattributes").write_bytes(hub.bytes_of(repo, ".gitattributes"))
    assert client.run(f"result = hub.verify({str(folder)!r}, {repo!r})") == 3
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    (folder / "config.json").unlink()
    with pytest.raises(ClientError, match=r"missing or different: config\.json, model\.safetensors"):
        client.run(f"hub.verify({str(folder)!r}, {repo!r})")


@pytest.mark.parametrize("kind", ["cut", "stall"])
@pytest.mark.parametrize("at", [0, 1000])
def test_09_a_download_that_ends_too_early_is_completed(client, hub, repo, tmp_path, kind, at):
    content = plant(hub, repo)
    hub.fail(kind, "GET", BLOB, at=at)
    assert pull(client, repo, tmp_path) == content


@pytest.mark.parametrize("kind", ["continued", "ignored"])
def test_09_a_long_download_is_continued_even_if_ranges_are_ignored(client, hub, repo, tmp_path, kind):
    content = plant(hub, repo, 21 * MIB)
    hub.fail("cut", "GET", BLOB, at=11 * MIB)
    if kind == "ignored":
        hub.fail("ignore_range", "GET", BLOB, times=9)
    assert pull(client, repo, tmp_path) == content
    assert [r.headers.get("range") for r in hub.seen("GET", BLOB)] == [None, f"bytes={10 * MIB}-"]


def test_10_killed_in_a_download_the_next_call_is_intact(hub, client, repo, tmp_path):
    content = plant(hub, repo)
    hub.fail("stall", "GET", BLOB, at=100_000)
    with Client(hub, tmp_path / "home", hub.alice, HF_HUB_DOWNLOAD_TIMEOUT="60") as doomed:
        doomed.start(f"from hf_efficient import hub; hub.pull({repo!r}, cache_dir={str(tmp_path / 'cache')!r})")
        while not hub.seen("GET", BLOB):
            time.sleep(0.02)
        time.sleep(0.2)
        doomed.kill()
    assert not list((tmp_path / "cache").rglob("model.safetensors"))
    assert pull(client, repo, tmp_path / "cache") == content


def test_a_pull_into_a_folder_is_verified_too(client, hub, repo, tmp_path):
    content = plant(hub, repo)
    hub.fail("flip", "GET", BLOB, at=7)
    client.run(f"hub.pull({repo!r}, local_dir={str(tmp_path / 'here')!r})")
    assert digest((tmp_path / "here" / "model.safetensors").read_bytes()) == content


def test_nothing_listens(client, hub, tmp_path):
    code = """
    from huggingface_hub import HfApi
    try:
        hub.client.Call("asking nobody", 1).run(lambda _: HfApi(endpoint="http://127.0.0.1:9").whoami())
    except hub.HubError as error:
        result = str(error)
    """
    assert "can't be reached" in client.run(code)


def test_two_at_once_do_not_disturb_each_other(client, hub, repo, tmp_path):
    first = write_model(tmp_path / "first", seed=2**31)  # what is stored already would not be sent
    hub.fail("hang", "POST", f"{repo}-hanging/commit/", times=99)
    code = f"""
    import threading
    outcomes = {{}}
    def run(name, timeout):
        try:
            outcomes[name] = hub.push({str(first)!r}, name, timeout=timeout).commit
        except hub.HubError as error:
            outcomes[name] = str(error)
    names = [{repo + "-hanging"!r}, {repo!r}]
    threads = [threading.Thread(target=run, args=(name, timeout)) for name, timeout in zip(names, [1, 30])]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    result = outcomes
    """
    outcomes = client.run(code)
    assert "not done within 1 s" in outcomes[f"{repo}-hanging"]
    assert outcomes[repo] == hub.head(repo).oid
