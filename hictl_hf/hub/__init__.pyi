from .publishing import push

__all__ = ["push"]
