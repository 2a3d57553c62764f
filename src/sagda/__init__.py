"""Federated min-max learning with SAGDA, FSGDA and their baselines.

This file only makes the public names available. `__init__.pyi` lists them with the
module that defines each name. A module is imported when one of its names is first used.
So `import sagda` and `sagda --help` do not have to wait for JAX.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__.remove("Torch")  # `from sagda import *` must work without PyTorch
