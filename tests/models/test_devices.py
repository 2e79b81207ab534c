"""What a model may do to a device: nothing that waits for it, and no float64, which MPS does not have.

Models run on `meta`, where asking for a value or bringing a tensor of the wrong device fails by itself.
"""

from contextlib import contextmanager

import pytest
import torch
from families import HEADS, head_id, inputs, tiny_config, tiny_model
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hf_efficient.attention import list_attentions
from hf_efficient.models.compressive_performer.fast import decoding

# Non-maximum suppression is a loop that ends when nothing is left to suppress: its predictions are looked at before.
FIELDS = {"mobilevit_v2": {"ssd_suppression": False}}
WAITS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "_linalg_check_errors"}
LANGUAGE, GREEN = (
    ("compressive_performer", "AutoModelForCausalLM"),
    ("hugginggreen_vit", "AutoModelForImageClassification"),
)
ALL_HEADS = [*HEADS, LANGUAGE]
CLASSIFIER = ("kerformer_text", "AutoModelForSequenceClassification")
# What takes another way through a family's code.
VARIANTS = [
    *((GREEN, {"heuristic": name}) for name in ("contrast", "entropy")),
    *((GREEN, {"attention_sparsity": kind, "attention_sparsity_weight": 0.1}) for kind in ("entropy", "hoyer")),
    (GREEN, {"routing": "tokens"}),
    *((LANGUAGE, {"compression": kind}) for kind in ("autoencoder", "mean", "max")),
    (LANGUAGE, {"reversible": True}),
]


class OnDevice(TorchDispatchMode):
    """Refuses what waits for a device, copies between one and the CPU, and float64. What the CPU does by itself is
    its own affair."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        result = func(*args, **(kwargs or {}))
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        seen = [*given, *made]
        if all(x.device.type == "cpu" for x in seen):
            return result
        assert name not in WAITS, f"{name} waits for the device"
        if name in ("index", "index_put", "index_put_"):
            assert all(x is None or x.dtype != torch.bool for x in args[1]), f"{name} by a mask waits for the device"
        # A number of the CPU is an argument of what runs on the device, unless it is a tensor there.
        devices = {x.device.type for x in seen if x.dim() or name in ("_to_copy", "copy_")}
        assert len(devices) < 2, f"{name} copies between {' and '.join(sorted(devices))}"
        wide = [x for x in seen if x.dtype in (torch.float64, torch.complex128) and x.device.type != "cpu"]
        assert not wide, f"{name} has float64"
        return result


class NoLists(TorchFunctionMode):
    """Refuses Python's numbers in a tensor of a device: they are copied there, and no operator tells of it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor):
            assert result.device.type == "cpu", f"{func.__name__} copies numbers to the device"
        return result


@contextmanager
def watched():
    with OnDevice(), NoLists():
        yield


def fitting(head) -> list[str]:
    """The mechanisms that its config takes."""

    def fits(name: str) -> bool:
        try:
            return bool(tiny_config(head[0], attention=name))
        except ValueError:
            return False

    return [name for name in list_attentions() if fits(name)]


def batch_for(model):
    if hasattr(model, "lm_head"):
        ids = torch.randint(0, 200, (2, 20))
        return {"input_ids": ids, "labels": ids}
    name = type(model).__name__
    return inputs(model, labels=name != "HuggingGreenViTForObjectDetection")  # whose loss is SciPy's


def on_meta(thing):
    return tree_map(lambda x: x.to("meta") if isinstance(x, torch.Tensor | torch.nn.Module) else x, thing)


def run(model, batch):
    output = model(**batch)
    if output.get("loss") is None:
        next(x for x in output.values() if torch.is_tensor(x) and x.requires_grad).sum().backward()
    else:
        output.loss.backward()


def check_training(head, **fields):
    model = on_meta(tiny_model(*head, **FIELDS.get(head[0], {}), **fields)).train()
    batch = on_meta(batch_for(model))
    run(model, batch)  # tables are made once
    with watched():
        run(model, batch)


@pytest.mark.parametrize("head", ALL_HEADS, ids=head_id)
def test_training_neither_waits_nor_copies(head):
    check_training(head)


@pytest.mark.parametrize(("head", "fields"), VARIANTS, ids=str)
def test_variants(head, fields):
    check_training(head, **fields)


@pytest.mark.parametrize("head", ALL_HEADS, ids=head_id)
@torch.no_grad()
def test_inference_neither_waits_nor_copies(head):
    model = on_meta(tiny_model(*head, **FIELDS.get(head[0], {}))).eval()
    batch = on_meta(batch_for(model))
    model(**batch)
    with watched():
        model(**batch)


@pytest.mark.parametrize("attention", list_attentions())
def test_every_mechanism(attention):
    grid = attention in list_attentions(needs_grid=True)
    check_training(("kerformer_vit", "AutoModel"), attention=attention, use_cls_token=not grid)


@pytest.mark.parametrize(("head", "attention"), [(head, x) for head in (CLASSIFIER, LANGUAGE) for x in fitting(head)])
def test_every_mechanism_with_padding_or_memory(head, attention):
    check_training(head, attention=attention)


@pytest.mark.parametrize("attention", fitting(LANGUAGE))
@torch.no_grad()
def test_a_step_of_decoding(attention):
    model = on_meta(tiny_model(*LANGUAGE, attention=attention))
    decode(model, watched())


@pytest.mark.parametrize("attention", ["linear_elu", "performer", "softmax"])
@torch.no_grad()
def test_a_step_of_fast_decoding(attention):
    """Which is not for `meta`; on the CPU nothing is asked for either."""
    model = tiny_model(*LANGUAGE, attention=attention)
    decode(model, NoScalars())
    assert model.model in decoding._decoders


def decode(model, watch):
    tokens = torch.zeros(2, 11, dtype=torch.long, device=model.device)
    cache = model(tokens, use_cache=True).past_key_values
    model(tokens[:, :1], past_key_values=cache)
    with watch:
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
    x = torch.ones(2, 2, device="meta")
    with watched():
        torch.ones(3).nonzero()  # the CPU waits for nobody
        x * torch.tensor(2.0)
        for wrong in (
            lambda: torch.ones(2).to("meta"),
            lambda: torch.ones(()).to("meta"),
            lambda: torch.tensor([1.0], device="meta"),
            lambda: x.new_tensor(1.0),
            lambda: x.double(),
            lambda: x.sum().double(),
            lambda: x.masked_fill_(x > 0, 1)[x > 0],
            lambda: x.index_put_((x > 0,), x[0, 0]),
            lambda: torch.linalg.inv(x),
            lambda: x.sum().item(),
        ):
            with pytest.raises((AssertionError, NotImplementedError, RuntimeError)):  # the latter two of `meta` itself
                wrong()
