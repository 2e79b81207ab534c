"""Scratch memory: used again, never read before it is written, one per thread, and given back when asked."""

import threading
import weakref

import torch
from kernel_oracle import (
    MAPS,
    assert_equal_with_gradients,
    both_ways,
    every_map,
    explicit,
    heads_first,
    inputs,
    total_of,
)
from torch.testing import assert_close

from hf_efficient.linear import EluFeatures, kernel_attention, release_scratch, scratch


@every_map
@both_ways
def test_what_an_earlier_call_left_in_scratch_memory_is_not_read(name, causal):
    hostile = [torch.full_like(x, torch.nan).requires_grad_() for x in inputs(name, length=60)]
    output, _ = kernel_attention(*heads_first(hostile), MAPS[name][0], causal=causal, chunk_size=8, block_size=4)
    output.sum().backward()
    leaves = inputs(name)
    q, k, v = heads_first(leaves)
    fast, state = kernel_attention(q, k, v, MAPS[name][0], causal=causal, chunk_size=8, block_size=4)
    assert_equal_with_gradients((fast, total_of(state)), explicit(name, q, k, v, causal), leaves)


def test_scratch_memory_does_not_grow_with_every_length_seen():
    for length in range(1, 120):
        leaves = inputs("elu", 1, 1, length, 2, 2)
        q, k, v = heads_first(leaves)
        output, _ = kernel_attention(q, k, v, EluFeatures(), causal=True, block_size=16)
        assert_close(output, explicit("elu", q, k, v, True)[0], atol=1e-11, rtol=1e-9)
        output.sum().backward()
    assert len(scratch.scratch_on(q.device).kept) < 1500


def test_threads_do_not_share_scratch_memory():
    def work(leaves):
        output, _ = kernel_attention(*heads_first(leaves), EluFeatures(), causal=True, chunk_size=16)
        return [output, *torch.autograd.grad(output.square().sum(), leaves)]

    jobs = [inputs("elu", length=400) for _ in range(2)]
    alone, wrong = [work(leaves) for leaves in jobs], []

    def repeat(leaves, expected):
        for _ in range(10):
            wrong.extend(1 for a, b in zip(work(leaves), expected, strict=True) if not torch.equal(a, b))

    threads = [threading.Thread(target=repeat, args=pair) for pair in zip(jobs, alone, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def run(length=100):
    torch.manual_seed(0)
    leaves = inputs("elu", length=length)
    output, _ = kernel_attention(*heads_first(leaves), EluFeatures(), causal=True)
    return [output, *torch.autograd.grad(output.sum(), leaves)]


def test_it_is_kept_until_it_is_released():
    before = run()
    own = scratch.scratch_on(torch.device("cpu"))
    buffers = [weakref.ref(x) for x in own.kept.values()]
    size = own.kept["keys", torch.float64].nbytes if ("keys", torch.float64) in own.kept else 0
    assert buffers
    run()
    assert [x() for x in buffers] == list(own.kept.values()), "a second call allocates nothing"
    assert release_scratch() >= max(size, 1)
    assert not any(x() is not None for x in buffers)
    assert not own.kept
    assert release_scratch() == 0
    assert all(map(torch.equal, run(), before)), "it comes back by itself"


def test_threads_that_wait_give_theirs_back_too():
    kept, done, free = [], threading.Event(), threading.Event()

    def work():
        run()
        kept.append(scratch.scratch_on(torch.device("cpu")).kept)
        done.set()
        free.wait()

    thread = threading.Thread(target=work)
    thread.start()
    done.wait()
    assert kept[0]
    released = release_scratch()
    assert not kept[0]
    assert released > 0
    free.set()
    thread.join()
