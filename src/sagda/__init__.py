"""Federated min-max learning: SAGDA, FSGDA and their baselines, for every engine.

This file only hands out the public names. `__init__.pyi` lists them and says where each
one is defined. A module is imported when one of its names is first used, so that
`import sagda` and `sagda --help` start without JAX.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__.remove("Torch")  # `from sagda import *` must work without PyTorch
