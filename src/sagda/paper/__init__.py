"""The paper's evaluation: figures as files, runs, tuning, evidence and verdicts."""
