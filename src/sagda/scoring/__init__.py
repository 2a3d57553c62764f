"""After training: scores of new rows, calibrated probabilities, and evaluation.

Nothing here trains. Start with `scorer.py`.
"""
