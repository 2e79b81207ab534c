"""The model families, one folder each: a config, and the models that transformers' Auto classes find."""
