"""What is there for speed alone. `switched_off()` in `switch.py` computes the same without it, to rounding.

- `projection.py`: weights stored and read as is quickest for a single token; parts of a product.
- `projected_memory.py`: keys and values of memory slots, kept while the weights stay as they are.
- `reading.py`: prompts, segment by segment and only as deep as somebody looks back.
- `decoding.py`: one token through all layers with the weights at hand.
- `reconstruction.py`: the compression's loss with its gradient on the way forward.
"""
