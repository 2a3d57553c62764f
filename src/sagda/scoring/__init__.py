"""Use a trained model: score new rows, compute probabilities, evaluate the scores.

Nothing here trains. Read `scorer.py` first.
"""
