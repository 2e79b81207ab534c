"""Where a layer's weight is used without calling the layer, which is faster: only if nobody else has a say in it."""

from torch import nn
from torch.nn.modules import module as every_module


def is_hooked(layer: nn.Module) -> bool:
    """Whether calling a layer is more than its class's `forward`."""
    own = layer.__dict__
    return bool(own["_forward_pre_hooks"] or own["_forward_hooks"] or "forward" in own)


def is_watched(layer: nn.Module) -> bool:
    """Whether anybody would notice if a layer were not called: by its own hooks, forward or backward, or by all's."""
    own = layer.__dict__
    return bool(is_hooked(layer) or own["_backward_pre_hooks"] or own["_backward_hooks"] or are_all_watched())


def are_all_watched() -> bool:
    """Whether somebody watches every layer there is."""
    forward = every_module._global_forward_pre_hooks or every_module._global_forward_hooks
    return bool(forward or every_module._global_backward_pre_hooks or every_module._global_backward_hooks)


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer is its weight and bias and nothing else: no adapter around it, no hooks, nothing offloaded."""
    return type(layer) is kind and not is_watched(layer)


def is_function(layer: nn.Module) -> bool:
    """Whether a layer has nothing to learn, and nobody watches it, as most activations."""
    return next(layer.parameters(), None) is None and not is_watched(layer)
