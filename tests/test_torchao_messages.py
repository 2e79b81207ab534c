"""What is dropped of torchao's messages, and when."""

import io
import logging

import pytest

from hf_efficient.torchao_messages import torchao_kept_quiet

KERNELS = ("torchao", "Failed to load _C_mxfp8.so: no CUDA")
ENUM = ("torch.utils._pytree", "<enum 'KernelPreference'> is an Enum subclass and is now natively supported")
OTHER = (("torchao", "int4 is slow here"), ("torch.utils._pytree", "registered twice"), ("mine", "Failed to load"))


def unconfigured(monkeypatch) -> io.StringIO:
    """What a process prints whose logging nobody has set up. To be called in a test: pytest sets it up before."""
    stream = io.StringIO()
    monkeypatch.setattr(logging, "lastResort", logging.StreamHandler(stream))
    for name in ("root", "torch", "torch.utils._pytree", "torchao"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    return stream


def warn(*messages: tuple[str, str]) -> None:
    for logger, text in messages:
        logging.getLogger(logger).warning(text)


def test_only_those_messages_are_dropped_and_only_inside(monkeypatch):
    printed = unconfigured(monkeypatch)
    with torchao_kept_quiet():
        warn(KERNELS, ENUM, *OTHER)
    assert printed.getvalue().splitlines() == [text for _, text in OTHER]
    warn(KERNELS, ENUM)
    assert printed.getvalue().splitlines()[-2:] == [KERNELS[1], ENUM[1]]


def test_also_when_the_import_fails(monkeypatch):
    printed = unconfigured(monkeypatch)
    with pytest.raises(ImportError), torchao_kept_quiet():
        raise ImportError
    warn(KERNELS)
    assert printed.getvalue().splitlines() == [KERNELS[1]]


def test_where_logging_is_set_up_everything_is_logged(caplog):
    with torchao_kept_quiet():
        warn(KERNELS)
    assert caplog.messages == [KERNELS[1]]
