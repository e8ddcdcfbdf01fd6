"""What can't be resized live is refused in one line, before anything is changed."""

from __future__ import annotations

import pytest

from ones.slurm_ext.errors import OnesError
from ones.slurm_ext.runtime.live.terms import Number, Offer

torch = pytest.importorskip("torch", reason="PyTorch is not installed; run scripts/test-sharded")

from ones.slurm_ext.runtime import sharding  # noqa: E402
from ones.slurm_ext.runtime.live import sharded  # noqa: E402

WRAP = sharding.by_layers({})


@pytest.fixture
def shards() -> sharded.Shards:
    found = sharded.Shards(torch.device("cpu"))
    found.add(torch.nn.Linear(100, 100), WRAP, 2)
    return found


def offer(size: int) -> Offer:
    return Offer(number=Number(1), rank=0, size=size, sources=(0,), receivers=())


def test_slices_for_which_there_is_no_memory_are_told_before_the_vote(
    shards: sharded.Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shards.fits(offer(2)) == ""
    monkeypatch.setattr(sharded, "available", lambda device: 1 << 20)
    assert "too little memory for 1/2 of the model's state" in shards.fits(offer(2))
    shards.leads()
    assert shards.fits(offer(2)) == ""  # it has more than that already


def test_a_model_without_memory_and_another_number_of_shards_are_refused(
    shards: sharded.Shards,
) -> None:
    with pytest.raises(OnesError, match="built in memory, not on meta"):
        shards.add(torch.nn.Linear(3, 3, device="meta"), WRAP, 2)
    with pytest.raises(OnesError, match="give it the same shards for all"):
        shards.add(torch.nn.Linear(3, 3), WRAP, 4)


@pytest.mark.parametrize(
    ("workers", "shards", "copies"),
    [(4, None, (1, 4)), (4, 2, (2, 2)), (6, 4, (1, 6)), (3, 2, (1, 3)), (1, 8, (1, 1))],
)
def test_no_worker_is_left_over_whatever_their_number(
    workers: int, shards: int | None, copies: tuple[int, int]
) -> None:
    assert sharding.copies(workers, shards) == copies
