"""The server's side of a federated run; start with `results` and `federated_run`."""
