"""CompressivePerformer: a language model with linear attention and compressed memory (Ragupathi et al. 2021)."""
