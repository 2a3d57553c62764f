"""A configuration and its folder."""
