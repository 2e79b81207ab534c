"""FSDP2 on two processes of a CPU: weights that no process has as a whole end as those of one process."""

import pytest
import sharded_run
import torch
from PIL import Image
from transformers import pipeline

import hf_efficient
from hf_efficient import image_processor_for


@pytest.mark.slow
def test_sharded_training_equals_that_of_one_process(preloaded, tmp_path):
    for done in preloaded.run_ranks(2, sharded_run.__file__, tmp_path):
        assert done.returncode == 0, done.stderr[-3000:]
    for name in sharded_run.MODELS:
        model = sharded_run.build(name)
        sharded_run.steps(model, sharded_run.optimizer_of(model), range(sharded_run.STEPS))
        found = getattr(hf_efficient, name).from_pretrained(tmp_path / name)
        for key, weight in model.state_dict().items():
            torch.testing.assert_close(found.state_dict()[key], weight, atol=2e-5, rtol=1e-4, msg=f"{name} {key}")
        if hasattr(found.config, "image_size"):
            image_processor_for(found.config).save_pretrained(tmp_path / name)
            classify = pipeline("image-classification", model=str(tmp_path / name))
            assert len(classify(Image.new("RGB", (8, 8)))) == 3
