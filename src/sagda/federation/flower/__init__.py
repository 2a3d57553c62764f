"""Flower as the transport: its processes, messages and guards."""
