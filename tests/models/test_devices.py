"""What a model may do to a device: nothing that waits for it, and no float64, which MPS does not have.

Models run on `meta`, where asking for a value or bringing a tensor of the wrong device fails by itself.
"""

import pytest
import torch
from families import HEADS, head_id, inputs, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_efficient.attention import list_attentions
from hf_efficient.models.auto import FAMILIES

# Non-maximum suppression is a loop that ends when nothing is left to suppress: its predictions are looked at before.
FIELDS = {"mobilevit_v2": {"ssd_suppression": False}}
WAITS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "unique2"}
LANGUAGE = "compressive_performer"
heads = pytest.mark.parametrize("head", [*HEADS, (LANGUAGE, "AutoModelForCausalLM")], ids=head_id)


class OnDevice(TorchDispatchMode):
    """Refuses what waits for a device, copies between one and the CPU, and float64. What the CPU does by itself is
    its own affair."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        devices = {x.device.type for x in (*given, *made) if x.dim()}
        if devices == {"cpu"} or not devices:
            return result
        assert name not in WAITS, f"{name} waits for the device"
        assert len(devices) == 1, f"{name} copies between {' and '.join(sorted(devices))}"
        assert all(x.dtype not in (torch.float64, torch.complex128) for x in made), f"{name} makes float64"
        return result


def batch_for(model):
    if model.main_input_name == "input_ids":
        ids = torch.randint(0, 200, (2, 20))
        return {"input_ids": ids, "labels": ids} if hasattr(model, "lm_head") else {"input_ids": ids}
    return inputs(model, labels=not type(model).__name__.endswith("ForObjectDetection"))  # whose loss is SciPy's


def on_meta(thing):
    return {name: x.to("meta") for name, x in thing.items()} if isinstance(thing, dict) else thing.to("meta")


def run(model, batch):
    output = model(**batch)
    if output.get("loss") is None:
        next(x for x in output.values() if torch.is_tensor(x) and x.requires_grad).sum().backward()
    else:
        output.loss.backward()


@heads
def test_training_neither_waits_nor_copies(head):
    model = on_meta(tiny_model(*head, **FIELDS.get(head[0], {}))).train()
    batch = on_meta(batch_for(model))
    run(model, batch)  # tables are made once
    with OnDevice():
        run(model, batch)


@pytest.mark.parametrize("head", [(name, "AutoModel") for name in FAMILIES], ids=head_id)
@torch.no_grad()
def test_inference_neither_waits_nor_copies(head):
    model = on_meta(tiny_model(*head, **FIELDS.get(head[0], {}))).eval()
    batch = on_meta(batch_for(model))
    model(**batch)
    with OnDevice():
        model(**batch)


@pytest.mark.parametrize("attention", list_attentions())
def test_every_mechanism(attention):
    grid = attention in list_attentions(needs_grid=True)
    model = on_meta(tiny_model("kerformer_vit", attention=attention, use_cls_token=not grid)).train()
    batch = on_meta(batch_for(model))
    run(model, batch)
    with OnDevice():
        run(model, batch)


@pytest.mark.parametrize("attention", ["kerformer", "performer"])
@torch.no_grad()
def test_a_step_of_decoding(attention):
    model = on_meta(tiny_model(LANGUAGE, "AutoModelForCausalLM", attention=attention))
    tokens = torch.zeros(2, 11, dtype=torch.long, device="meta")
    cache = model(tokens, use_cache=True).past_key_values
    model(tokens[:, :1], past_key_values=cache)
    with OnDevice():
        for _ in range(6):  # over the end of a segment
            model(tokens[:, :1], past_key_values=cache)


def test_ranks_do_not_exchange_counters():
    """They would be read again in every step: `Counter` trusts a buffer that nobody else changes."""
    model = tiny_model("hugginggreen_vit", "AutoModelForImageClassification", attention="performer").train()
    counters = {"vit.selector.epoch", "vit.selector.step", *(f"vit.layers.{i}.attention.forwards" for i in range(2))}
    assert set(model._ddp_params_and_buffers_to_ignore) == counters
    model.set_epoch(0)
    model(**batch_for(model))
    with NoScalars():
        model.vit.selector.draw()
        for layer in model.vit.layers:
            layer.attention.before_forward()


class NoScalars(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in WAITS, func
        return func(*args, **(kwargs or {}))


def test_the_watch_sees_what_it_should():
    with OnDevice():
        torch.ones(3).nonzero()  # the CPU waits for nobody
        for wrong in (
            lambda: torch.ones(2).to("meta"),
            lambda: torch.ones(2, device="meta").double(),
            lambda: torch.ones(2, device="meta").nonzero(),
        ):
            with pytest.raises((AssertionError, NotImplementedError, RuntimeError)):
                wrong()
