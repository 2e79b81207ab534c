"""Runs held against one another: energies with their statistics, pictures, the demonstration."""
