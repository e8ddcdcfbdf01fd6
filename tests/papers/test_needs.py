"""The figures that docs/benchmarks/liquid.md claims of needs, and what it says of bad files."""

from __future__ import annotations

import json
from pathlib import Path

import needs
import pytest
from judged_commands import assert_refused, said

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "lucid"
TABLE = SHARED / "single_data.csv"
published = pytest.mark.skipif(
    not TABLE.is_file(), reason="the measured profiles are not beside the checkout"
)
HEADING = "model,dataset,batchsize,amp,gpu_util,gmem\n"
GOOD = HEADING + "a,d,32,0,50,3000\na,d,64,0,80,4000\nb,d,32,1,20,2500\n"


@pytest.mark.shared
@published
@pytest.mark.parametrize(
    ("way", "memory", "utilization"),
    [
        ("a family", 0.35, 0.42),
        ("a batch size of a family", 0.05, 0.1),
        ("a batch size", 0.05, 0.1),
    ],
)
def test_the_structural_model_beats_the_means_and_suggests_enough(
    way: str, memory: float, utilization: float
) -> None:
    found = needs.crossed([TABLE], ["structural", "mean", "family mean"], needs.CARD)
    lines = {one["regressor"]: one for one in found["all"] if one["way"] == way}
    structural = lines["structural"]
    assert structural["memory_error"] < memory
    assert structural["utilization_error"] < utilization
    assert structural["memory_under"] <= 0.01
    for other in ("mean", "family mean"):
        assert structural["memory_error"] < lines[other]["memory_error"]
        assert structural["utilization_error"] < lines[other]["utilization_error"]


@pytest.mark.shared
@published
def test_head_room_of_models_that_have_run_is_less_than_half_as_much_again() -> None:
    found = needs.crossed([TABLE], ["structural"], needs.CARD)["all"]
    ways = [one for one in found if one["way"].startswith("a batch size")]
    assert all(one["memory_reserved"] < 0.5 for one in ways)


@pytest.mark.shared
@published
def test_families_never_seen_are_guessed_no_worse_than_by_the_mean_and_within_their_promise() -> (
    None
):
    found = needs.crossed([TABLE], ["chosen", "mean"], needs.CARD, draws=[1, 2, 3])
    lines = {(one["way"], one["regressor"]): one for one in found["all"]}
    for way in ("a family", "the families of a dataset", "a third of the families"):
        chosen, means = lines[way, "chosen"], lines[way, "mean"]
        assert chosen["utilization_error"] <= means["utilization_error"]
        assert chosen["memory_error"] <= means["memory_error"]
        assert chosen["memory_under"] <= 1.0 - chosen["memory_promised"]
    for way in ("a family", "the families of a dataset"):
        assert lines[way, "chosen"]["memory_error"] <= 0.2
        assert lines[way, "chosen"]["memory_reserved"] <= 2.0


def test_the_answer_has_a_line_for_each_model_and_regressor_and_one_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(GOOD)
    code, out, _ = said(needs.main, capsys, file, file, "--json", "--regressor", "structural")
    answer = json.loads(out)
    assert code == 0
    assert answer["schema"] == 1
    assert [one["model"] for one in answer["rows"]] == ["a", "b"]
    assert answer["all"][0]["runs"] == 3
    code, out, _ = said(needs.main, capsys, file, file, "--regressor", "mean")
    assert code == 0
    assert "| a | 2 | same | mean |" in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("model,batchsize,gpu_util\na,32,50\n", ":1: column gmem: is missing"),
        (HEADING, "has 0 runs, and at least 2 are needed"),
        (HEADING + "a,d,32,0,50,3000\n", ":2: has 1 runs, and at least 2 are needed"),
        (GOOD + "a,d,many,0,50,3000\n", ":5: column batchsize: 'many' is not a number"),
        (GOOD + "a,d,0,0,50,3000\n", ":5: column batchsize: '0' is not from"),
        (GOOD + "a,d,32,0,50,nan\n", ":5: column gmem: 'nan' is not a finite number"),
        (GOOD + "a,d,32,0,50,0\n", ":5: column gmem: '0' is not above 0"),
        (GOOD + "a,d,32,0,101,9\n", ":5: column gpu_util: '101' is more than 100"),
        (GOOD + "a,d,32,2,50,9\n", ":5: column amp: '2' is more than 1"),
        (GOOD + ",d,32,0,50,9\n", ":5: column model: is empty"),
        (GOOD + "a,d\n", ":5: has 2 columns where the heading has 6"),
    ],
)
def test_a_bad_file_gets_one_line_that_names_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    assert_refused(needs.main, capsys, tmp_path, good=GOOD, bad=text, words=words)


def test_a_third_of_the_families_is_drawn_whole_and_by_the_seed(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(HEADING + "".join(f"m{k % 6},d,{8 << k // 6},0,50,3000\n" for k in range(12)))
    known = needs.read(file, least=2)
    drawn = [{one.traits.family for one in needs.a_third(known, seed)} for seed in range(8)]
    assert all(len(one) == 2 for one in drawn)
    assert len({frozenset(one) for one in drawn}) > 1
    assert len(needs.a_third(known, 3)) == 4


def test_draws_without_cross_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(GOOD)
    with pytest.raises(SystemExit):
        needs.main([str(file), str(file), "--draws", "3"])
    assert "--draws goes with --cross" in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(needs.main, capsys, tmp_path / "none.csv", tmp_path / "none.csv")
    assert code == 1
    assert "none.csv: can't be read: No such file" in err
