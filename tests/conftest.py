import gc
import os

os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub reads it once, when it is imported

import pytest
import torch
from preloaded import Preloaded

gc.disable()  # until all tests are imported, with what they import: none of it is ever freed

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores


# Of transformers' own tests, which models/test_transformers_common.py runs where it finds them.
THEIR_MARKS = (
    *("accelerate_tests", "flash_attn_test", "flash_attn_3_test", "flash_attn_4_test", "generate", "order", "timeout"),
    *("executorch_export_test", "onnx_export_test", "torch_export_test", "torch_compile_test"),
)


def pytest_configure(config):
    for mark in THEIR_MARKS if "TRANSFORMERS_TESTS" in os.environ else ():
        config.addinivalue_line("markers", f"{mark}: of transformers' own tests")


def pytest_collection_finish():
    """From now on garbage is looked for among what tests make, not among millions of objects of modules.

    Every Trainer does that once; it took as long as its training.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def preloaded():
    """Starts scripts in processes that need not import anything."""
    with Preloaded() as process:
        yield process
