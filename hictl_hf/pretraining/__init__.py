"""Pre-training with HiCTL's objectives: language model, sentence level, word level."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
