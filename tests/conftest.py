import gc
import os

os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub reads it once, when it is imported

from pathlib import Path

import pytest
import torch
from filelock import FileLock
from preloaded import Preloaded

BARE = (
    "matplotlib.pyplot, pandas, pyarrow, scipy.optimize, sklearn.metrics, torch._dynamo, torch.distributed.fsdp, "
    "torch.export, torchao.quantization"
)
# Ours as a whole, but none of its parts that must be imported by name: a script that forgets one fails here, too.
OURS = "hf_efficient, accelerate, codecarbon, datasets, matplotlib.pyplot, sklearn.metrics, transformers.trainer"

gc.disable()  # until all tests are imported, with what they import: none of it is ever freed

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores


def pytest_collection_finish():
    """From now on garbage is looked for among what tests make, not among millions of objects of modules.

    Every Trainer does that once; it took as long as its training.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def what_stays():
    """Nor among what the tests of the file before have left: imports, compiled graphs, caches."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def common_folder(tmp_path_factory) -> Path:
    """Of all of pytest's workers."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def shared(folder: Path, imports: str, **options) -> Preloaded:
    """Made by the first of pytest's workers that asks for it, and there for all until the last test."""
    last = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    with FileLock(f"{folder}.lock"):
        return Preloaded.at(folder) if folder.exists() else Preloaded(folder, imports, lifetime=last, **options)


@pytest.fixture(scope="session")
def bare(common_folder):
    """Starts processes that have imported torch, but nothing of Hugging Face's, nor of ours."""
    return shared(common_folder / "bare", BARE)


@pytest.fixture(scope="session")
def preloaded(common_folder, bare):
    """Starts processes that need not import anything, and whose children need not either."""
    return shared(common_folder / "preloaded", OURS, interpreter=bare.python, descend=True)
