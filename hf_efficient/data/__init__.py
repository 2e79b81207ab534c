"""Data: what comes in from files, made fit for models."""
