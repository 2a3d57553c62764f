"""Engines: each supplies `exchange`, and so runs every algorithm."""
