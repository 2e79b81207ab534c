"""KerformerViT: a Vision Transformer with linear kernel attention, re-weighted by SE-K (Gan et al. 2023)."""
