"""Where a layer's weight is used without calling the layer, which is faster: only if nobody else has a say in it."""

from torch import nn
from torch.nn.modules import module as every_module


def can_bypass(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer is its weight and bias and nothing else: no adapter around it, no hooks, nothing offloaded."""
    own = layer.__dict__
    backward = own["_backward_pre_hooks"] or own["_backward_hooks"]
    return type(layer) is kind and not (is_hooked(layer) or backward or are_all_hooked())


def is_hooked(layer: nn.Module) -> bool:
    """Whether calling a layer is more than its class's `forward`."""
    own = layer.__dict__
    return bool(own["_forward_pre_hooks"] or own["_forward_hooks"] or "forward" in own)


def are_all_hooked() -> bool:
    """Whether there are hooks on every layer there is."""
    forward = every_module._global_forward_pre_hooks or every_module._global_forward_hooks
    return bool(forward or every_module._global_backward_pre_hooks or every_module._global_backward_hooks)
