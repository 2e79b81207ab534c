import os

os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub reads it once, when it is imported

import pytest
import torch
from preloaded import Preloaded

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def preloaded():
    """Starts scripts in processes that need not import anything."""
    with Preloaded() as process:
        yield process
