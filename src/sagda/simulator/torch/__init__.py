"""The simulator's rounds on PyTorch tensors, client by client."""
