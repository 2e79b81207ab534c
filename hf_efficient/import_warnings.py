"""Hides what torchao and torch log when transformers imports them: warnings about their own parts, not ours to show.

It has to be imported before transformers' models are, so `hf_efficient` imports it first.
"""

import logging

for name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(name).setLevel(logging.ERROR)
