"""Measuring: what `flashcute bench` and the scripts in benchmarks/ are made of. Needs PyTorch; see flashcute.cli.bench."""
