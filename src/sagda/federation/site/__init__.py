"""A site's side of a federated run; start with `folder`, which answers any letter."""
