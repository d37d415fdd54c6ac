"""Where a proof of this folder runs: on a GPU by `make test-gpu`, and on the CPU where a slow answer exists.

Expected values are computed on the CPU in double precision, by the slow versions that other tests use.
"""

import pytest

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
TWO_GPUS = pytest.param("cuda", marks=pytest.mark.gpu(number=2))
SLOWLY = pytest.param("cpu", marks=pytest.mark.slow)

everywhere = pytest.mark.parametrize("device", ["cpu", GPU])
on_gpu = pytest.mark.parametrize("device", [GPU])
