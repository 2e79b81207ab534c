"""Puts this folder on the path: the tests of each family use `families` too."""
