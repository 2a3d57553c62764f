"""The commands; nothing here imports JAX before a command needs it."""
