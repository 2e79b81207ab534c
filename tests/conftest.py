import os

os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub reads it once, when it is imported

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
