"""The memory as transformers' cache: what `generate()` builds, passes on, reorders and resets.

`DynamicCache(config=...)` makes one `CompressiveMemoryLayer` per layer because `config.layer_types` names its
`_layer_type`. `CompressiveMemory` is the same with a few conveniences for training: `outputs.memory` is one, and goes
into the next call as `memory=` (left as it is) or as `past_key_values=` (updated in place).
"""

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, DynamicCache

from ...layers.ngrams import NOTHING
from .memory import Memory


class CompressiveMemoryLayer(CacheLayerMixin):
    """One layer's memory, and how much each row has seen. Its size does not depend on the latter."""

    _layer_type = "compressive_memory"
    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.made_for: dict = {}  # the config fields and sizes that its tensors belong to
        self.reset()

    def store(self, memory: Memory, seen: list[int], columns: int, made_for: dict) -> None:
        """The memory after a call of so many columns, and what each row has then seen."""
        self.memory, self.made_for, self.is_initialized = memory, made_for, True
        self.count(seen, columns)

    def count(self, seen: list[int], columns: int) -> None:
        self.seen, self.columns = seen, self.columns + columns

    def get_seq_length(self) -> int:
        """Columns seen, padding included: `generate` cuts its inputs by it."""
        return self.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns + query_length, 0

    def get_max_length(self) -> int:
        return -1

    @property
    def batch_size(self) -> int:
        return len(self.seen) or -1

    def reset(self, rows: Tensor | None = None) -> None:
        """Forgets everything, or what some rows (B,), True = reset, have seen."""
        if rows is None:
            self.memory, self.seen, self.columns, self.is_initialized = None, [], 0, False
            self.tokens: Tensor | None = None  # the last ones (B, n), kept by the first layer for n-grams
        elif self.memory is not None:
            self.seen = [0 if reset else n for n, reset in zip(self.seen, rows.tolist(), strict=True)]
            self.memory = self.memory._replace(state=None)  # it holds what was forgotten
            if self.tokens is not None:
                self.tokens = self.tokens.masked_fill(rows.to(self.tokens.device).bool().unsqueeze(1), NOTHING)

    def select(self, rows: Tensor) -> None:
        if self.memory is not None:
            index = rows.tolist()
            if index != list(range(len(self.seen))):
                self.memory, self.seen = self.memory.select(rows), [self.seen[row] for row in index]
                self.tokens = self.tokens if self.tokens is None else self.tokens[index]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.select(indices.nonzero().flatten() if indices.dtype == torch.bool else indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.select(torch.arange(len(self.seen)).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise ValueError("a compressed memory can't be cropped: what it has taken in can't be taken out again.")

    def lazy_initialization(self, key_states, value_states):
        raise NotImplementedError("the model stores its memory by itself: there are no keys and values to begin with.")

    def update(self, key_states, value_states, *args, **kwargs):
        raise NotImplementedError("a memory belongs to a CompressivePerformer: it keeps no keys and values.")


class CompressiveMemory(DynamicCache):
    """What a CompressivePerformer remembers, layer by layer; all tensors are detached."""

    def __init__(self, config):
        super().__init__(config=config)

    @classmethod
    def copy_of(cls, memory: DynamicCache, config) -> "CompressiveMemory":
        """Another memory with the same contents, which a call may then update in place."""
        copy = cls(config)
        copy.layers = []
        for layer in memory.layers:
            twin = CompressiveMemoryLayer()
            twin.__dict__.update(layer.__dict__)
            if layer.memory is not None:  # recent and compressed memory are replaced, never written to
                state = layer.memory.state
                state = None if state is None else {name: x.clone() for name, x in state.items()}
                twin.memory = layer.memory._replace(segment=layer.memory.segment.clone(), state=state)
            copy.layers.append(twin)
        return copy

    def reset(self, rows: Tensor | None = None) -> None:
        """Forgets everything, or what some rows (B,), True = reset, have seen."""
        for layer in self.layers:
            layer.reset(rows)

    def state_dict(self) -> dict[str, Tensor]:
        """As flat tensors, to be saved beside a checkpoint; the attention's state is made anew from them."""
        tensors = {}
        for i, layer in enumerate(self.layers):
            if layer.memory is not None:
                tensors[f"{i}.seen"] = torch.tensor([layer.columns, *layer.seen])
                for name in ("compressed", "recent", "segment"):
                    tensors[f"{i}.{name}"] = getattr(layer.memory, name)
                if layer.tokens is not None:
                    tensors[f"{i}.tokens"] = layer.tokens
        return tensors

    @classmethod
    def from_state_dict(cls, tensors: dict[str, Tensor], config) -> "CompressiveMemory":
        memory = cls(config)
        for i, layer in enumerate(memory.layers):
            if f"{i}.seen" in tensors:
                columns, *seen = tensors[f"{i}.seen"].tolist()
                parts = Memory(*(tensors[f"{i}.{name}"] for name in ("compressed", "recent", "segment")))
                layer.store(parts, seen, columns, {})
                layer.tokens = tensors.get(f"{i}.tokens")
        return memory
