"""Keys: who may take part, and who signed what."""
