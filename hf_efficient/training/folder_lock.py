"""One run owns a folder: a second one that is started in it is told whose it is, and ends.

The kernel holds the lock and lets go of it when the process is gone, be it by kill -9: no lock is left behind. Network
file systems may not pass it on to other hosts. So the file says whose it is, and its owner touches it every few
seconds; where it names another host, or the file system knows no locks, it is watched for a while before it is taken.
Windows has no such locks: there nothing is locked.
"""

import errno
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from transformers import TrainingArguments

from ..errors import told
from .errors import RunError, TrainingError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

logger = logging.getLogger(__name__)

FILE = "run.lock"
BEAT = 5.0  # seconds between signs of life
MISSED = 3  # of them, before an owner whom the kernel does not know is taken for dead
HELD_ELSEWHERE, NO_LOCKS = (errno.EACCES, errno.EAGAIN), (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class FolderLock:
    """The lock of a folder, for `with lock.taken():`."""

    held: set[Path] = set()  # by this process, which its own locks would not stop

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).resolve()
        self.file = self.folder / FILE
        self.owner = {"host": socket.gethostname(), "process": os.getpid(), "since": time.time_ns()}

    @contextmanager
    def taken(self) -> Iterator[None]:
        """RunError if another has it."""
        if fcntl is None:
            yield
            return
        if self.file in self.held:
            raise RunError(self.refusal(self.owner))
        with told(f"training.output_dir={self.folder} can't be written to", RunError, (OSError,)):
            self.take()
        self.held.add(self.file)
        released = threading.Event()
        beats = threading.Thread(target=self.beat, args=(released,), daemon=True, name="lock")
        beats.start()
        try:
            yield
        finally:
            released.set()
            beats.join()
            if self.is_ours():
                self.file.unlink(missing_ok=True)
            os.close(self.handle)
            self.held.remove(self.file)

    def take(self) -> None:
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.handle = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if self.is_free():
                    os.ftruncate(self.handle, 0)
                    os.write(self.handle, json.dumps(self.owner).encode())
                    os.fsync(self.handle)
                    return
            except BaseException:
                os.close(self.handle)
                raise
            os.close(self.handle)

    def is_free(self) -> bool:
        """False if the file has been removed since it was opened; RunError if the lock is another's."""
        try:
            fcntl.lockf(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the process's own: no child keeps it alive
            hosts = [self.owner["host"]]  # of which the kernel has said all
        except OSError as error:
            if error.errno in HELD_ELSEWHERE:
                raise RunError(self.refusal(self.read())) from None
            if error.errno not in NO_LOCKS:
                raise
            hosts = []
        owner = self.read()
        if owner and owner["host"] not in hosts and self.beats():
            raise RunError(self.refusal(owner))
        return self.file.exists() and os.path.samestat(os.fstat(self.handle), self.file.stat())

    def refusal(self, owner: dict) -> str:
        whose = f"process {owner['process']} on {owner['host']}" if owner else "another process"
        return (
            f"{self.folder} is in use by {whose}, and two runs in one folder would spoil each other's checkpoints. "
            "Wait until it has ended, or give another output_dir."
        )

    def read(self) -> dict:
        """Whose the lock is, by the open file: to open and close it once more would let go of the lock."""
        try:
            found = json.loads(os.pread(self.handle, 4096, 0))
        except ValueError:  # it is just being written
            return {}
        return found if isinstance(found, dict) and {"host", "process"} <= set(found) else {}

    def is_ours(self) -> bool:
        return self.read() == self.owner

    def check(self) -> None:
        """Raises if another host has taken the folder, for want of signs of life or at the very same time."""
        if self.file in self.held and not self.is_ours():
            raise TrainingError(f"{self.refusal(self.read())} This run has lost it and saves nothing more.")

    def beat(self, released: threading.Event) -> None:
        while not released.wait(BEAT):
            if self.is_ours():
                os.utime(self.handle)

    def beats(self) -> bool:
        """Whether somebody touches the file; its own times are compared, so no clocks need agree."""
        logger.warning("%s names a process of another host: waiting for a sign of life from it.", self.file)
        before, end = os.fstat(self.handle).st_mtime_ns, time.monotonic() + BEAT * MISSED
        while time.monotonic() < end:
            time.sleep(BEAT / 10)
            if os.fstat(self.handle).st_mtime_ns != before:
                return True
        return False


@contextmanager
def own_folder(args: TrainingArguments) -> Iterator[FolderLock]:
    """Takes output_dir for a run of one or several processes; all of them raise if another has it."""
    lock, refusal = FolderLock(args.output_dir), None
    with ExitStack() as stack:
        try:
            if args.should_save:
                stack.enter_context(lock.taken())
        except RunError as error:
            refusal = error
        refusals = [refusal]
        if args.world_size > 1:
            refusals *= args.world_size
            torch.distributed.all_gather_object(refusals, refusal)
        for refusal in filter(None, refusals):
            raise refusal
        yield lock
