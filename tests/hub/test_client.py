"""What needs no Hub: sentences without tokens, time limits, names."""

import huggingface_hub
import pytest

from hf_efficient import hub
from hf_efficient.hub import client, contents
from hf_efficient.models.checkpoint_paths import check_folder, leaves_folder

TOKEN = "hf_" + "AbCd1234" * 4


def test_a_message_is_one_line_without_tokens(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "an odd one")
    error = hub.HubError(f"not\n  with {TOKEN}, 'Bearer {TOKEN}', an odd one or given", token="given")
    assert str(error) == "not with <token>, 'Bearer <token>', <token> or <token>"


def test_time_follows_the_size_unless_it_is_given():
    call = hub.Call("testing", None)
    assert call.timeout == 120
    call.allow(300 * 2**20)
    assert call.timeout == 420
    fixed = hub.Call("testing", 7)
    fixed.allow(2**40)
    assert fixed.timeout == 7


def test_a_call_that_never_ends_is_left_alone():
    import threading

    stop = threading.Event()
    with pytest.raises(hub.HubError, match=r"waiting: not done within 0\.2 s"):
        hub.Call("waiting", 0.2).run(lambda _: stop.wait(60))
    stop.set()


def test_what_will_not_pass_is_tried_once_and_what_may_is_repeated(monkeypatch):
    monkeypatch.setattr(client, "FIRST_WAIT", 0.001)
    attempts = []

    def fail(transient):
        attempts.append(transient)
        raise hub.HubError("no.", transient)

    for transient, expected in [(False, 1), (True, client.ATTEMPTS)]:
        attempts.clear()
        with pytest.raises(hub.HubError, match="trying: no"):
            hub.Call("trying", 60).run(lambda _, transient=transient: fail(transient))
        assert len(attempts) == expected


def test_a_bug_is_named():
    error = client.explain(KeyError("weights"))
    assert str(error) == "KeyError: 'weights'" and not error.transient


def test_a_full_disk_does_not_pass_but_lost_bytes_do():
    assert not client.explain(OSError(28, "No space left on device")).transient
    assert client.explain(OSError("Consistency check failed: file should be of size 5 but has size 3")).transient


def test_requests_of_others_keep_their_time():
    request = huggingface_hub.get_session().build_request("GET", "http://127.0.0.1/", timeout=None)
    client._obey_deadline(request)
    assert set(request.extensions["timeout"].values()) == {None}


@pytest.mark.parametrize("name", ["../a", "a/../../b", "/a", "\\a", "a\\b", "C:a", "C:/a", "..", "a\0b"])
def test_names_that_leave_a_folder(name):
    assert leaves_folder(name)


@pytest.mark.parametrize("name", ["a", "a/b.safetensors", "..a", "a..b/c", ".gitattributes", "model-00001-of-00002.x"])
def test_names_that_stay(name):
    assert not leaves_folder(name)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=r"index\.json"):
        check_folder(tmp_path)


def test_checksums_are_gits_and_lfs(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"hello\n")
    assert contents.checksum(file, large=False) == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object
    assert contents.checksum(file, large=True).startswith("5891b5b522d5df08")  # sha256sum


def test_a_folder_without_anything_to_share(tmp_path):
    (tmp_path / "optimizer.pt").touch()
    with pytest.raises(hub.HubError, match="holds nothing to share"):
        hub.push(tmp_path, "alice/nothing")
    (tmp_path / "a\\b.txt").touch()
    with pytest.raises(hub.HubError, match="backslashes"):
        hub.push(tmp_path, "alice/odd")
