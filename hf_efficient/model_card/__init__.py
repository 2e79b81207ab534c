"""The card of a trained model, from what its run left in its folder: config.json, results.json, energy.json.

    write_card("results/cifar10_hugginggreen_vit_small", compare_with=["results/cifar10_vit_small"])

Nothing is claimed that those files don't say: what is missing is left out, or named as missing.
"""

from .card import render_card, write_card

__all__ = ["render_card", "write_card"]
