"""Data: files and data sets, turned into batches for models."""
