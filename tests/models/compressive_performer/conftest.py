"""Puts this folder on the path: the tests in `fast/` use its cases too."""
