"""A model that was evaluated is in the mode it was in, module by module."""

import pytest
from torch import nn

from hictl_hf.training.eval_mode import eval_mode


@pytest.mark.parametrize("fails", [False, True])
def test_each_module_has_its_own_mode_again(fails: bool) -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)))
    model[1].eval()
    before = [module.training for module in model.modules()]
    try:
        with eval_mode(model):
            assert not any(module.training for module in model.modules())
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert [module.training for module in model.modules()] == before == [True, True, False, False, False]
