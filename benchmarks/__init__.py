"""Measurements side by side in one run; `python -m benchmarks` lists them."""
