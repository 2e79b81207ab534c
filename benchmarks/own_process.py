"""A call in a process of its own, as a user would run it.

In a shared process, what others leave on the heap decides how soon glibc returns memory to the system, and faulting it
in again can take longer than the call.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from benchmarks.memory import freed_memory
from hf_efficient.experiments.process_memory import limit_memory

Call = Callable[[], object]


class OwnProcess:
    """A process that waits for calls. Calling it has the call made there, and returns when that is done.

    Args:
        make: prepares the call over there; it must be picklable.
        keep_memory: whether glibc is told to keep freed memory.
    """

    def __init__(self, make: Callable[[], Call], keep_memory: bool):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, far_end = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(far_end, make, torch.get_num_threads()), daemon=True)
        with freed_memory(keep_memory):
            self.process.start()
        far_end.close()
        self.wait()

    def __call__(self) -> None:
        self.pipe.send("go")
        self.wait()

    def wait(self) -> None:
        try:
            answer = self.pipe.recv()
        except EOFError:
            self.process.join()
            answer = f"the process ended with exit code {self.process.exitcode}"
        if answer != "done":
            raise RuntimeError(f"a contender in a process of its own failed: {answer}")

    def __enter__(self) -> "OwnProcess":
        return self

    def __exit__(self, *_) -> None:
        self.pipe.close()
        self.process.join()


def _serve(pipe: Connection, make: Callable[[], Call], threads: int) -> None:
    torch.set_num_threads(threads)
    limit_memory()
    try:
        call = make()
        pipe.send("done")
        while pipe.recv():
            call()
            pipe.send("done")
    except EOFError:
        return
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
