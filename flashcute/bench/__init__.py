"""What `flashcute bench` and the scripts in benchmarks/ measure with. Needs PyTorch."""
