"""Benchmarks: figures as ratios to a named baseline of the same run. Nothing imports this."""
