"""How time is taken on a machine that also serves the page, and perhaps does other things."""

import time

import torch


def clock() -> float:
    """Seconds. With one thread the processor's, which pass only while this thread computes; otherwise the wall's."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()
