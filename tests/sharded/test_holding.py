"""How much of a sharded state a worker holds."""

from __future__ import annotations

import pytest
import torch

from ones.slurm_ext.runtime.live.holding import apart
from ones.slurm_ext.runtime.live.reshard import Cut


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_slices_are_as_large_as_is_said_before_they_are_there(of: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 6)).sum().backward()
    optimizer.step()
    state = apart([model], [optimizer], whole=True)
    for prefix in ("", "models."):
        named = [name for name in state.slices if name.startswith(prefix)]
        for cut in (Cut(index, of) for index in range(of)):
            expected = 0
            for name in named:
                tensor = state.slices[name]
                if state.specs[name].dim is not None:
                    begin, end = cut.rows(tensor.shape[0])
                    tensor = tensor[begin:end]
                expected += tensor.numel() * tensor.element_size()
            assert state.sizes(prefix).of(cut) == expected
