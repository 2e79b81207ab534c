"""Where a layer's weight is used without calling the layer, which is faster: only if nobody else has a say in it."""

from torch import Tensor, nn


def is_hooked(layer: nn.Module) -> bool:
    """Whether calling a layer is more than its class's `forward`."""
    own = layer.__dict__
    return bool(own["_forward_pre_hooks"] or own["_forward_hooks"] or "forward" in own)


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer is its weight and bias and nothing else: no adapter around it, no hooks, nothing offloaded."""
    return type(layer) is kind and not is_hooked(layer)


def version_of(x: Tensor) -> int | None:
    """Counts the changes in place, so that what was made of x can be told from what would be made of it now; tensors
    made in inference mode have no such count."""
    return None if x.is_inference() else x._version
