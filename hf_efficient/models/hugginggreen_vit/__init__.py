"""HuggingGreenViT: a Vision Transformer that computes only the patches worth it (Limone & Iannotti)."""
