"""After training: scores, calibration and evaluation of a model."""
