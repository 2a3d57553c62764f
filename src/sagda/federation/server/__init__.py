"""The server of a federated run. Start with `results`, then read `federated_run`."""
