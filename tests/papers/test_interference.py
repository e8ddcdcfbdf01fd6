"""The figures that docs/benchmarks/liquid.md claims of pairs, and what it says of bad files."""

from __future__ import annotations

import json
from pathlib import Path

import interference
import pytest
from judged_commands import assert_refused, said

from ones.estimator.pairing import Rules, Sharer, against

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "lucid"
TABLE = SHARED / "colocate_info.csv"
H200 = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "h200"
HEADING = "model1,batchsize1,amp1,speed1,model2,batchsize2,amp2,speed2,gpu_util,gmem_util\n"
GOOD = HEADING + "a,32,0,0.9,b,32,0,0.8,90,50\na,32,0,0.7,a,32,0,0.7,99,60\n"


@pytest.mark.shared
@pytest.mark.skipif(not TABLE.is_file(), reason="the measured pairs are not beside the checkout")
@pytest.mark.parametrize("single", [SHARED / "single_data.csv", None])
def test_held_out_pairs_are_foretold_with_a_third_of_the_error_of_the_mean(
    single: Path | None,
) -> None:
    found = interference.report([TABLE], single, 0.8)["ways"]
    lines = {one["way"]: one for one in found if one["left_out"] == "pairs"}
    assert lines["process"]["mae"] < 0.4 * lines["mean"]["mae"]
    assert lines["process"]["mae"] < 0.75 * lines["nearest"]["mae"]
    assert lines["process"]["precision"] > 0.95
    assert lines["process"]["recall"] > 0.96
    assert lines["process"]["sure_precision"] > 0.98
    assert lines["process"]["sure_recall"] > 0.85


def test_pairs_of_an_h200_are_foretold_with_a_quarter_of_the_error_of_the_mean() -> None:
    found = interference.report([H200 / "pairs.csv"], H200 / "single_data.csv", 0.8)["ways"]
    lines = {one["way"]: one for one in found if one["left_out"] == "pairs"}
    assert lines["process"]["mae"] < 0.25 * lines["mean"]["mae"]
    assert lines["process"]["sure_precision"] == 1.0


def test_whom_the_busy_rule_lets_share_an_h200_keeps_80_percent_of_its_speed_there() -> None:
    alone = interference.read_single(H200 / "single_data.csv")
    nodes, cards = frozenset({"n1"}), {"n1": 140_000.0}
    least = []
    for pair in interference.read(H200 / "pairs.csv", alone, least=1):
        both = [
            Sharer(job=job, user="u", account="a", alone=one, memory=1.0, nodes=nodes)
            for job, one in enumerate((pair.first, pair.second), start=1)
        ]
        if not against(*both, cards, Rules()):
            least.append(min(pair.speeds))
    assert len(least) == 9
    assert min(least) >= 0.8


def test_the_answer_has_every_way_and_every_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text(GOOD)
    code, out, _ = said(interference.main, capsys, file, file, "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["schema"] == 1
    assert answer["single"] is None
    assert [one["way"] for one in answer["ways"]] == list(interference.WAYS)
    assert [one["model"] for one in answer["models"]] == ["a", "b"]
    code, out, _ = said(interference.main, capsys, file, file)
    assert code == 0
    assert "| process |" in out


def test_what_jobs_do_alone_is_read_from_beside_the_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, single = tmp_path / "pairs.csv", tmp_path / "single_data.csv"
    file.write_text(GOOD)
    single.write_text("model,batchsize,amp,gpu_util,gmem_util\na,32,0,60,30\n")
    _, out, _ = said(interference.main, capsys, file, file, "--json")
    assert json.loads(out)["single"] == str(single)
    _, out, _ = said(interference.main, capsys, file, file, "--json", "--single", "none")
    assert json.loads(out)["single"] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (HEADING, "has 0 pairs, and at least 2 are needed"),
        (HEADING + "a,32,0,0.9,b,32,0,0.8,90,50\n", ":2: has 1 pairs, and at least 2"),
        (HEADING.replace("speed2", "x") + "\n", ":1: column speed2: is missing"),
        (GOOD + "a,32,0,fast,b,32,0,0.8,90,50\n", ":4: column speed1: 'fast' is not a number"),
        (GOOD + "a,32,0,-1,b,32,0,0.8,90,50\n", ":4: column speed1: '-1' is less than 0"),
        (GOOD + "a,32,0,0.9,b,32,0,99,90,50\n", ":4: column speed2: '99' is more than 10"),
        (GOOD + "a,0,0,0.9,b,32,0,0.9,90,50\n", ":4: column batchsize1: '0' is not above 0"),
    ],
)
def test_a_bad_file_gets_one_line_that_names_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    assert_refused(interference.main, capsys, tmp_path, good=GOOD, bad=text, words=words)
