"""Threads of the client that know the call they work for, and that the end of the process does not wait for.

huggingface_hub downloads and uploads several files at a time in pools of its own. Their threads know nothing of a
deadline, and Python waits for them before a process may end: a hanging server keeps it alive for a minute.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from importlib import import_module

WITH_POOLS = ("huggingface_hub.utils.tqdm", "huggingface_hub._commit_api")  # modules of the client
WORKERS = 8


class DaemonPool(Executor):
    """What the client uses of a ThreadPoolExecutor."""

    def __init__(self, max_workers: int | None = None, initializer: Callable | None = None, initargs: tuple = ()):
        self.most, self.begin = max_workers or WORKERS, partial(initializer, *initargs) if initializer else None
        self.tasks: queue.SimpleQueue = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []

    def submit(self, fn: Callable, /, *args, **kwargs) -> Future:
        future: Future = Future()
        self.tasks.put((future, partial(copy_context().run, fn, *args, **kwargs)))
        if len(self.threads) < self.most:
            self.threads.append(threading.Thread(target=self._work, daemon=True))
            self.threads[-1].start()
        return future

    def _work(self) -> None:
        if self.begin:
            self.begin()
        while (task := self.tasks.get()) is not None:
            future, work = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in self.threads:
            self.tasks.put(None)
        for thread in self.threads if wait else ():
            thread.join()


def lend_pools(call: ContextVar) -> None:
    """From now on the client's pools are ours wherever `call` is set, and as they were elsewhere."""

    def make(*args, **kwargs) -> Executor:
        return (ThreadPoolExecutor if call.get() is None else DaemonPool)(*args, **kwargs)

    for name in WITH_POOLS:
        import_module(name).ThreadPoolExecutor = make
