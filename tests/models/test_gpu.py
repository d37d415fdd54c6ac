"""TF32 in the word level: only for a model in half precision, only unless the user has said otherwise."""

import pytest
import torch

from hictl_hf.models.gpu import products_in_tf32


@pytest.mark.parametrize(
    ("set_by_user", "allowed", "expected"),
    [("none", True, "tf32"), ("none", False, "none"), ("ieee", True, "ieee"), ("tf32", False, "tf32")],
)
def test_products_are_in_tf32_unless_the_user_has_said_how(set_by_user: str, allowed: bool, expected: str) -> None:
    switch = torch.backends.cuda.matmul
    before, switch.fp32_precision = switch.fp32_precision, set_by_user
    try:
        with products_in_tf32(allowed):
            assert switch.fp32_precision == expected
        assert switch.fp32_precision == set_by_user
        with pytest.raises(ValueError, match="lost"), products_in_tf32(allowed):
            raise ValueError("lost")
        assert switch.fp32_precision == set_by_user
    finally:
        switch.fp32_precision = before
