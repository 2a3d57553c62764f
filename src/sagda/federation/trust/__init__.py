"""Keys and certificates: who may take part, and who signed an answer."""
