from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from profile_builders import LARGER, PLACEMENTS, VALIDATION, a_profile, a_typed_profile

from ones.daemon.replay.faults import TraceError
from ones.daemon.replay.profiles import Profile, known, load
from ones.daemon.replay.workload import Gradient, OutsideProfile, Step

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
published = pytest.mark.shared


@pytest.fixture(autouse=True)
def _data(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("shared") and not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not there")


def plain(folder: Path, **changed: str) -> Profile:
    return load(a_profile(folder, **changed), ["plain"])["plain"]


def fault_of(folder: Path, **changed: str) -> str:
    with pytest.raises(TraceError) as caught:
        plain(folder, **changed)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def near(step: Step, *, seconds: float, sync: float) -> bool:
    return step.seconds == pytest.approx(seconds) and step.sync == pytest.approx(sync)


def test_a_measured_placement_is_interpolated_over_the_local_batch(tmp_path: Path) -> None:
    profile = plain(tmp_path)
    assert near(profile.step("any", (2,), 16), seconds=0.4, sync=0.1)
    assert near(profile.step("any", (2,), 20), seconds=0.5, sync=0.1)


def test_rotations_of_a_placement_are_the_same(tmp_path: Path) -> None:
    profile = plain(tmp_path)
    assert profile.step("any", (2, 1), 24) == profile.step("any", (1, 2), 24)


def test_other_placements_are_interpolated_over_nodes_gpus_and_batch(tmp_path: Path) -> None:
    """Three nodes lie half way between the two and the four that were measured."""
    found = plain(tmp_path).step("any", (1, 1, 1), 8)
    assert found.sync == pytest.approx((0.2 + 0.6) / 2)
    assert found.seconds == pytest.approx((0.4 + 0.8) / 2)


@pytest.mark.parametrize(
    ("gpus_on", "local"), [((1,), 7), ((1,), 33), ((3,), 16), ((2, 2, 2, 2, 2), 16), ((10,), 16)]
)
def test_nothing_is_extrapolated(tmp_path: Path, gpus_on: tuple[int, ...], local: int) -> None:
    profile = plain(tmp_path)
    for _ in range(2):  # the second answer comes from memory
        with pytest.raises(OutsideProfile, match="not measured"):
            profile.step("any", gpus_on, local)


def test_ten_gpus_of_a_node_are_not_taken_for_one_gpu_on_one_of_two_nodes(tmp_path: Path) -> None:
    profile = plain(tmp_path, placements=PLACEMENTS.replace("12,", "15,"))
    with pytest.raises(OutsideProfile):
        profile.step("any", (15,), 16)


def test_an_epoch_ends_where_the_first_batch_size_says(tmp_path: Path) -> None:
    assert list(plain(tmp_path).epochs) == [90.0, 250.0, 400.0]


def test_gradient_statistics_are_interpolated_between_batch_sizes(tmp_path: Path) -> None:
    profile = plain(tmp_path)
    assert profile.gradient(16, 0) == Gradient(sqr=4.0, var=8.0)
    assert profile.gradient(28, 0) == Gradient(sqr=4.5, var=12.0)
    for batch, epoch in ((15, 0), (65, 0), (16, 3)):
        with pytest.raises(OutsideProfile):
            profile.gradient(batch, epoch)


def test_batches_and_sizes_follow_what_was_measured(tmp_path: Path) -> None:
    profile = plain(tmp_path)
    batches = profile.batches
    assert (batches.reference, batches.most) == (16, 64)
    assert (batches.least_per_gpu, batches.most_per_gpu) == (8, 32)
    assert (batches.accumulates, batches.tunes) == (True, True)
    assert str(profile.sizes) == "1-8"
    assert profile.restart_seconds is None
    assert profile.runs_on("whatever")


def test_in_the_world_of_sia_a_type_that_was_not_measured_does_not_run(tmp_path: Path) -> None:
    profile = load(a_typed_profile(tmp_path, types=("old", "new")), ["plain"])["plain"]
    assert profile.runs_on("old")
    assert profile.runs_on("new")
    assert not profile.runs_on("other")
    with pytest.raises(OutsideProfile):
        profile.step("other", (1,), 16)
    assert profile.restart_seconds == 30.0


def test_only_the_types_of_the_cluster_are_read(tmp_path: Path) -> None:
    folder = a_typed_profile(tmp_path, types=("old", "new"))
    (folder / "plain" / "placements-old.csv").write_text("broken")
    assert load(folder, ["plain"], gpu_types=["new", "third"])["plain"].gpu_types == {"new"}
    with pytest.raises(TraceError, match="of third"):
        load(folder, ["plain"], gpu_types=["third"])


def test_sia_slows_its_profiles_down_and_has_restarts_by_model(tmp_path: Path) -> None:
    profile = load(a_typed_profile(tmp_path, "bert"), ["bert"])
    (tmp_path / "bert" / "validation-16.csv").write_text(VALIDATION)
    assert profile["bert"].restart_seconds == 120.0
    assert len(profile["bert"].epochs) == 2
    assert near(profile["bert"].step("old", (2,), 16), seconds=1.2 * 0.4, sync=1.2 * 0.1)


def test_more_samples_than_sias_memory_holds_take_several_passes(tmp_path: Path) -> None:
    profile = load(a_typed_profile(tmp_path), ["plain"])["plain"]
    # 48 samples are two passes of 24, of which the second alone synchronises
    assert near(profile.step("old", (2,), 48), seconds=0.5 + 0.6, sync=0.1)


def test_a_job_in_pipeline_stages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="pipeline"):
        load(a_typed_profile(tmp_path, "gpt_pmp"), ["gpt_pmp"])
    assert known(tmp_path) == ()


def test_a_hole_in_a_profile_names_file_line_and_column(tmp_path: Path) -> None:
    said = fault_of(tmp_path, placements=PLACEMENTS.replace("2,16,0.4,0.1", "2,16,,0.1"))
    assert "placements.csv:6: column step_time: is empty" in said


@pytest.mark.parametrize(
    ("cell", "bad", "said"),
    [
        ("2,16,0.4,0.1", "2,16,nan,0.1", "6: column step_time: 'nan' is not a finite number"),
        ("2,16,0.4,0.1", "2,16,0.4,0.5", "6: column sync_time: '0.5' is more than 0.4"),
        ("2,16,0.4,0.1", "2,16,-1,0.1", "6: column step_time: '-1' is less than"),
        ("2,16,0.4,0.1", "20,16,0.4,0.1", "6: column placement: '20' is not GPUs a node"),
        ("2,16,0.4,0.1", "2,16,0.4", "6: has 3 columns where the heading has 4"),
        ("local_bsz,", "batch,", "1: column local_bsz: is missing"),
    ],
)
def test_bad_step_times_are_named(tmp_path: Path, cell: str, bad: str, said: str) -> None:
    assert f"placements.csv:{said}" in fault_of(tmp_path, placements=PLACEMENTS.replace(cell, bad))


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    a_profile(tmp_path)
    (tmp_path / "plain" / "scalability.csv").unlink()
    with pytest.raises(TraceError, match=r"scalability\.csv: can't be read: No such file"):
        load(tmp_path, ["plain"])
    (tmp_path / "plain" / "placements.csv").unlink()
    with pytest.raises(TraceError, match=r"has no placements\.csv or placements-TYPE\.csv"):
        load(tmp_path, ["plain"])
    with pytest.raises(TraceError, match="is no folder"):
        load(tmp_path / "nowhere", ["plain"])


def test_epochs_that_are_missing_or_run_backwards_are_named(tmp_path: Path) -> None:
    said = fault_of(tmp_path, validation__64=LARGER.replace("410", "110"))
    assert "validation-64.csv:4: column progress: 110 is not more than 260" in said
    short = load(a_profile(tmp_path, "bert"), ["bert"])["bert"]
    assert len(short.epochs) == 2  # as many as the application trains
    with pytest.raises(TraceError, match="has 3 epochs and the application trains 100"):
        load(a_profile(tmp_path, "cifar10"), ["cifar10"])


def real(world: str, name: str) -> Profile:
    return load(SHARED / world / "profiles", [name])[name]


@published
def test_published_applications_are_read_as_their_simulator_reads_them() -> None:
    names = known(SHARED / "pollux" / "profiles")
    assert names == ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
    found = load(SHARED / "pollux" / "profiles", names)
    limits = {
        name: (one.batches.reference, one.batches.most, one.batches.least_per_gpu)
        for name, one in found.items()
    }
    assert limits["bert"] == (12, 384, 4)
    assert limits["cifar10"] == (128, 4096, 32)
    assert limits["imagenet"] == (200, 12800, 20)
    assert found["yolov3"].batches.most_per_gpu == 8
    assert {name: len(one.epochs) for name, one in found.items()} == {
        "bert": 2,
        "cifar10": 100,
        "deepspeech2": 80,
        "imagenet": 90,
        "ncf": 10,
        "yolov3": 50,
    }


@published
def test_every_split_of_up_to_64_gpus_over_16_nodes_is_covered() -> None:
    """Four GPUs a node, whole nodes first: what a policy on the published cluster may choose."""
    for name in known(SHARED / "pollux" / "profiles"):
        profile = real("pollux", name)
        batches = profile.batches
        for gpus in profile.sizes:
            spread = tuple([1] * min(gpus, 16))
            full = tuple([4] * (gpus // 4) + [gpus % 4] * (gpus % 4 > 0))
            for placement in (full, spread if gpus <= 16 else full):
                assert profile.step("t4", placement, batches.least_per_gpu).seconds > 0


@published
def test_ncf_stays_on_one_gpu_with_its_batch_in_two_passes() -> None:
    profile = real("pollux", "ncf")
    assert str(profile.sizes) == "1"
    least, most = profile.batches.bounds(np.array([1]))
    assert least == most == 32768
    local, passes = profile.batches.split(np.array(32768.0), np.array(1))
    assert (int(local), int(passes)) == (16384, 2)
    assert str(real("sia", "ncf").sizes) == "1-64"


@published
def test_sias_types_differ_in_what_their_memory_holds() -> None:
    profile = real("sia", "yolov3")
    assert profile.batches.most_per_gpu == 32
    rtx = profile.step("rtx", (4,), 32)
    one_pass = profile.step("rtx", (4,), 8)
    assert rtx.seconds == pytest.approx(one_pass.seconds_of(4))
    assert profile.step("dgx-ext", (4,), 32).seconds < rtx.seconds / 2
