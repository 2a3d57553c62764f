"""The simulator: it runs every algorithm on simulated clients, using all cores."""
