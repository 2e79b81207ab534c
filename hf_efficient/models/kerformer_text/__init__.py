"""Kerformer for text: an encoder of texts with linear kernel attention, re-weighted by SE-K (Gan et al. 2023)."""
