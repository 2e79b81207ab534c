"""With `fast` switched off, outputs, memory and gradients are the same to rounding."""

import pytest
import torch
from compressive_performer_cases import EVERY, SHAPES, make, text
from torch.testing import assert_close

from hf_efficient.models.compressive_performer.fast import decoding, projected_memory, reading, reconstruction
from hf_efficient.models.compressive_performer.fast.switch import is_on, switched_off

MODELS = {name: fields for name, fields in EVERY.items() if name not in SHAPES}
CLOSE = {"atol": 1e-9, "rtol": 1e-9}
every_model = pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS)


def read_and_write(model, ids):
    """A prompt of several segments, its last logits only, then token by token: logits, and the memory after them."""
    with torch.no_grad():
        outputs = model(ids[:, :29], use_cache=True, logits_to_keep=1)
        logits = [outputs.logits]
        for i in range(29, ids.shape[1]):
            outputs = model(ids[:, i : i + 1], past_key_values=outputs.past_key_values, use_cache=True)
            logits.append(outputs.logits)
    return torch.cat(logits, 1), outputs.memory.state_dict()


@every_model
def test_reading_and_writing(fields):
    model, ids = make(**fields), text(2, 45)
    logits, memory = read_and_write(model, ids)
    with switched_off():
        expected, plain_memory = read_and_write(model, ids)
    assert_close(logits, expected, **CLOSE)
    for name, slots in memory.items():
        if not name.endswith("segment"):  # whose places beyond the open tokens hold anything
            assert_close(slots, plain_memory[name], **CLOSE)


def losses_and_gradients(model, ids):
    """Of three calls, memory carried over, one of them with a segment's end inside."""
    model.train().zero_grad()
    memory, losses = None, []
    for part in ids.split([16, 13, 16], 1):
        outputs = model(part, labels=part, memory=memory)
        outputs.loss.backward()
        losses.append(outputs.loss.detach())
        memory = outputs.memory
    return losses, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@every_model
def test_training(fields):
    model, ids = make(**fields), text(2, 45)
    found = losses_and_gradients(model, ids)
    with switched_off():
        assert_close(found, losses_and_gradients(model, ids), **CLOSE)


def test_it_switches_everything(monkeypatch):
    """Each trick is taken when it is on, and none when it is off."""
    taken = set()
    tricks = [
        *((decoding, "decoder_of"), (projected_memory, "last"), (reading, "needed_depths")),
        (reconstruction, "loss_of_states"),
    ]
    for module, name in tricks:
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, _real=real, _name=name, **k: (taken.add(_name), _real(*a, **k))[1]
        )
    model, ids = make(torch.float32), text(1, 45)
    with switched_off():
        assert not is_on()
        read_and_write(model, ids)
        losses_and_gradients(model, ids)
        assert not taken
    model.eval()
    assert is_on()
    read_and_write(model, ids)
    losses_and_gradients(model, ids)
    assert taken == {name for _, name in tricks}
