"""One run owns a folder: a second one is told whose it is; what a killed one left is taken over."""

import json
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from runs import KillAt, Killed, make_trainer
from transformers import TrainerCallback

from hf_efficient.training import folder_lock
from hf_efficient.training.checkpoints import list_checkpoints
from hf_efficient.training.errors import RunError, TrainingError
from hf_efficient.training.folder_lock import FILE, FolderLock

pytestmark = pytest.mark.usefixtures("quickly")


@contextmanager
def another_process(folder):
    """Holds the lock of a folder until it is killed."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with FolderLock(folder).taken():
            os.write(tell, b"!")
            time.sleep(60)
        os._exit(0)
    assert os.read(ready, 1) == b"!"
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_second_run_is_told_whose_the_folder_is(tmp_path):
    with another_process(tmp_path) as child:
        with pytest.raises(RunError, match=f"in use by process {child} on {socket.gethostname()}.*another output_dir"):
            make_trainer(tmp_path, max_steps=1).train()
        assert not list_checkpoints(tmp_path) and json.loads((tmp_path / FILE).read_text())["process"] == child
    assert (tmp_path / FILE).exists()  # as kill -9 leaves it
    begin = time.monotonic()
    with FolderLock(tmp_path).taken():
        assert json.loads((tmp_path / FILE).read_text())["process"] == os.getpid()
    assert not (tmp_path / FILE).exists() and time.monotonic() - begin < 1


def test_a_second_trainer_of_the_same_process(tmp_path):
    class Second(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            make_trainer(tmp_path, max_steps=1).train()

    with pytest.raises(RunError, match=f"in use by process {os.getpid()}"):
        make_trainer(tmp_path, Second()).train()
    with pytest.raises(Killed):
        make_trainer(tmp_path, KillAt(1)).train()
    make_trainer(tmp_path, max_steps=1).train()
    assert not (tmp_path / FILE).exists()


def test_all_processes_of_a_run_are_refused(tmp_path, preloaded):
    code = (
        "import os, torch, types\n"
        "from hf_efficient.training.folder_lock import own_folder\n"
        "torch.distributed.init_process_group('gloo')\n"
        f"args = types.SimpleNamespace(output_dir={str(tmp_path)!r}, world_size=2)\n"
        "args.should_save = os.environ['RANK'] == '0'\n"
        "with own_folder(args): pass"
    )
    with another_process(tmp_path) as child:
        done = preloaded.run_ranks(2, "-c", code)
    assert [f"in use by process {child}" in each.stderr for each in done] == [True, True]


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(folder_lock, "BEAT", 0.05)


def test_another_host_is_watched_for_signs_of_life(tmp_path, fast):
    """Its lock need not be seen here: a file that it touches is."""
    file = tmp_path / FILE
    file.write_text(json.dumps({"host": "elsewhere", "process": 7}))
    over = threading.Event()

    def beat():
        while not over.wait(0.02):
            os.utime(file)

    thread = threading.Thread(target=beat)
    thread.start()
    with pytest.raises(RunError, match="in use by process 7 on elsewhere"), FolderLock(tmp_path).taken():
        pass
    over.set()
    thread.join()
    lock = FolderLock(tmp_path)
    with lock.taken():  # it is dead
        first = file.stat().st_mtime_ns
        time.sleep(0.2)
        assert file.stat().st_mtime_ns > first
        lock.check()
        file.write_text(json.dumps({"host": "elsewhere", "process": 8}))
        with pytest.raises(TrainingError, match=r"in use by process 8 on elsewhere.* has lost it"):
            lock.check()
    assert file.exists()  # it is the other's now


def test_without_locks_of_the_file_system(tmp_path, fast, monkeypatch):
    """Then signs of life are all there is, of this host's processes too."""

    def no_locks(*_):
        raise OSError(folder_lock.NO_LOCKS[0], "No locks available")

    with another_process(tmp_path):
        monkeypatch.setattr(folder_lock.fcntl, "lockf", no_locks)
        with pytest.raises(RunError, match="in use by process"), FolderLock(tmp_path).taken():
            pass
    with FolderLock(tmp_path).taken():
        assert json.loads((tmp_path / FILE).read_text())["process"] == os.getpid()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunError, match=r"output_dir=.*file can't be written to"),
        FolderLock(tmp_path / "file").taken(),
    ):
        pass


def test_a_full_disk(tmp_path):
    (tmp_path / FILE).symlink_to("/dev/full")
    with pytest.raises(RunError, match="can't be written to: "), FolderLock(tmp_path).taken():
        pass
