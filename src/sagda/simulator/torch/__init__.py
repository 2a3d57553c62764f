"""The simulator for PyTorch models: it computes the clients one after the other."""
