"""HiCTL's models and losses. `save_pretrained` copies every file of this folder next to the weights."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
