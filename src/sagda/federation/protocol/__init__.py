"""Who believes what about whose variate: the rules by which both sides stay exact.

Pure state machines: no clock, no file, no network, no random number of their own. What
they need of those is passed in, so that tests can run them by the hundred thousand.
"""
