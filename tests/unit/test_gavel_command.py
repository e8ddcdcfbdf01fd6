"""`onesctl solve` on files, good and bad."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ones.daemon.ctl.solve import BadCase, answer, solve
from ones.policies.gavel import POLICIES


def a_case(policy: str = "max_min_fairness_perf", **fields: Any) -> dict[str, Any]:
    """Two jobs that each are fast on another type."""
    return {
        "name": "two",
        "policy": policy,
        "worker_types": ["k80", "v100"],
        "cluster": {"v100": 1, "k80": 1},
        "jobs": [
            {"id": 0, "scale_factor": 1, "weight": 1, "throughput": {"k80": 1, "v100": 4}},
            {"id": 1, "scale_factor": 1, "weight": 1, "throughput": {"k80": 3, "v100": 3}},
        ],
        **fields,
    }


def written(folder: Path, case: Any, name: str = "case.json") -> Path:
    file = folder / name
    file.write_text(case if isinstance(case, str) else json.dumps(case))
    return file


def test_the_answer_holds_what_the_format_names(tmp_path: Path) -> None:
    files = [str(written(tmp_path, a_case(), f"{i}.json")) for i in range(2)]
    run = CliRunner().invoke(solve, [*files, "--json"])
    assert run.exit_code == 0
    first, second = json.loads(run.stdout)
    assert first["name"] == "two"
    # Job 1 stays on the k80: 3 of the average 3; job 0 has 4 of 2.5.
    assert first["objective"] == second["objective"] == pytest.approx(1.0)
    assert first["rows"] == [[0], [1]]
    assert first["allocation"][0] == pytest.approx([0.0, 1.0], abs=1e-6)
    assert first["violation"] < 1e-9
    assert first["seconds"] >= 0


def test_a_case_that_needs_no_scipy_does_not_wait_for_its_import(tmp_path: Path) -> None:
    file = written(tmp_path, a_case())
    program = (
        "import sys; from ones.daemon.ctl.main import main\n"
        "try: main(['solve', sys.argv[1]])\n"
        "finally: print([name for name in sys.modules if name.startswith('scipy')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, file], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines()[-1] == "[]"


def test_the_reference_part_of_a_case_is_not_read(tmp_path: Path) -> None:
    plain = answer(written(tmp_path, a_case(), "a.json"))
    told = answer(written(tmp_path, a_case(reference={"objective_exact": 99}), "b.json"))
    assert told["objective"] == plain["objective"]


def test_levels_are_listed_by_job(tmp_path: Path) -> None:
    case = a_case("max_min_fairness_water_filling_perf")
    assert set(answer(written(tmp_path, case))["levels"]) == {"0", "1"}


def test_pairs_stand_in_the_file_s_order_and_unlike_gangs_get_nothing(tmp_path: Path) -> None:
    jobs = [
        {"id": i, "scale_factor": s, "throughput": {"k80": 1, "v100": 1}}
        for i, s in ((7, 1), (8, 1), (9, 2))
    ]
    both = {"k80": [0.9, 0.9], "v100": [0.9, 0.9]}
    pairs = [
        {"jobs": [8, 9], "scale_factor": 0, "throughput": both},
        {"jobs": [7, 8], "scale_factor": 1, "throughput": both},
    ]
    cluster = {"v100": 2, "k80": 0}
    case = a_case("max_min_fairness_packed", jobs=jobs, pairs=pairs, cluster=cluster)
    solved = answer(written(tmp_path, case))
    assert solved["rows"] == [[7], [8], [9], [8, 9], [7, 8]]
    assert solved["allocation"][3] == [0.0, 0.0]
    assert sum(solved["allocation"][4]) > 0.1
    assert solved["violation"] < 1e-9


def test_entities_can_be_nested(tmp_path: Path) -> None:
    entities = {
        "lab": {
            "policy": "fifo",
            "weight": 2,
            "entities": {"a": {"policy": "fairness", "weight": 1, "jobs": [0, 1]}},
        }
    }
    case = a_case("max_min_fairness_water_filling_perf", entities=entities)
    assert answer(written(tmp_path, case))["levels"]["0"] > 0.5


def test_dropped_deadlines_are_named(tmp_path: Path) -> None:
    case = a_case("max_sum_throughput_perf_SLOs")
    for job, steps in zip(case["jobs"], (10, 1000), strict=True):
        job |= {"steps_remaining": steps, "slo_seconds": 100}
    file = written(tmp_path, case)
    assert answer(file)["dropped"] == [1]
    assert "deadlines dropped: 1" in CliRunner().invoke(solve, [str(file)]).stdout


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"policy": "best"}, "case: policy: 'best' is none of"),
        ({"jobs": "none"}, "case: jobs: 'none' is of the wrong type"),
        ({"cluster": {"v100": 1}}, "type k80: cluster: has no number of GPUs"),
        ({"cluster": {"v100": 1, "k80": 1, "a100": 1}}, "type a100: worker_types: is missing"),
        ({"cluster": {"v100": 0, "k80": 0}}, "there are no GPUs"),
        ({"jobs": [{"id": 3}]}, "job 3: throughput: is missing"),
        ({"jobs": [{"id": 3, "throughput": {"k80": 1, "v100": "?"}}]}, "job 3: v100: '\\?'"),
        ({"jobs": [{"id": 3, "throughput": {"k80": 0, "v100": 0}}]}, "job 3: throughput: is 0"),
        (
            {"jobs": [{"id": 3, "scale_factor": 2, "throughput": {"k80": 1, "v100": 1}}]},
            "job 3: scale_factor: is wider than every type",
        ),
        ({"jobs": [{"id": 3, "throughput": {"k80": 1, "v100": 1}}] * 2}, "job 3: id: there is"),
        ({"policy": "min_total_duration_perf"}, "job 0: steps_remaining: is missing"),
        ({"pairs": [{"jobs": [0, 5], "scale_factor": 1}]}, r"pairs\[0\]: jobs: there is no job 5"),
        (
            {"entities": {"a": {"policy": "fifo", "weight": 1, "jobs": []}}},
            "entity a: jobs: has",
        ),
        (
            {"entities": {"a": {"policy": "fifo", "weight": 0, "jobs": [0, 1]}}},
            "entity a: weight",
        ),
    ],
)
def test_a_bad_case_gets_one_line_that_names_the_file_and_the_fault(
    tmp_path: Path, fields: dict[str, Any], fault: str
) -> None:
    file = written(tmp_path, a_case(**fields))
    with pytest.raises(BadCase, match=fault) as raised:
        answer(file)
    assert str(raised.value).startswith(str(file))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "NaN"])
def test_a_file_that_is_no_case_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadCase):
        answer(written(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCase, match="No such file"):
        answer(tmp_path / "none.json")


def test_no_jobs_are_an_empty_answer(tmp_path: Path) -> None:
    solved = answer(written(tmp_path, a_case(jobs=[])))
    assert solved["rows"] == solved["allocation"] == []
    assert solved["objective"] is None


def two_jobs(**fields: Any) -> list[dict[str, Any]]:
    return [
        {"id": i, "scale_factor": 1, "throughput": {"k80": 1, "v100": 1}, **fields} for i in (0, 1)
    ]


def a_pair(*jobs: Any, speed: float = 1.0) -> dict[str, Any]:
    speeds = {"k80": [speed, speed], "v100": [speed, speed]}
    return {"jobs": list(jobs), "scale_factor": 1, "throughput": speeds}


def deep(levels: int) -> dict[str, Any]:
    entity: dict[str, Any] = {"jobs": [0, 1], "policy": "fairness"}
    for _ in range(levels):
        entity = {"entities": {"x": entity}, "policy": "fairness"}
    return entity


PACKED = "max_min_fairness_packed"


@pytest.mark.parametrize(
    ("case", "fault"),
    [
        (a_case(cluster={"v100": int("9" * 400), "k80": 1}), "cluster: v100: is not"),
        (a_case(jobs=two_jobs(throughput={"k80": 1, "v100": 1e308})), "job 0: v100: is not"),
        (a_case(jobs=two_jobs(weight=1e-300)), "job 0: weight: is not"),
        ("[" * 100_000, "is nested too deep"),
        (a_case(worker_types=[["k80"], "v100"]), "worker_types"),
        (a_case(worker_types=["k80", "v100", "v100"]), "worker_types: 'v100'"),
        (a_case(jobs=[{**two_jobs()[0], "id": i} for i in (0, "0")]), "job 0: id"),
        (a_case(PACKED, pairs=[a_pair(0, 1), a_pair(1, 0, speed=0.5)]), r"pairs\[1\]: jobs: "),
        (a_case(PACKED, pairs=[a_pair([0], 1)]), "there is no job"),
        (a_case(PACKED, pairs={"jobs": [0, 1]}), "case: pairs: "),
        (a_case(entities=[1]), "case: entities: "),
        (a_case(entities={"a": {"jobs": 3, "policy": "fairness"}}), "entity a: jobs: "),
        (a_case(entities={"a": {"jobs": [[0]], "policy": "fairness"}}), "entity a: jobs: "),
        (a_case(entities={"a": {"entities": [1], "policy": "fairness"}}), "entity a: entities: "),
        (
            a_case("finish_time_fairness_perf", jobs=two_jobs(steps_remaining=0)),
            "job 0: steps_remaining",
        ),
    ],
)
def test_hostile_cases_get_one_line_that_names_the_fault(
    tmp_path: Path, case: Any, fault: str
) -> None:
    with pytest.raises(BadCase, match=fault):
        answer(written(tmp_path, case))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize(
    "fields",
    [
        {"steps_remaining": 0, "time_since_start": 100, "cumulative_isolated_time": 100},
        {"steps_remaining": 1e100, "throughput": {"k80": 1e-100, "v100": 1e100}},
        {"steps_remaining": 1e-100, "weight": 1e100, "time_since_start": 1e100},
    ],
    ids=["none left", "far apart", "heavy"],
)
def test_numbers_at_the_edge_are_answered_or_refused(
    tmp_path: Path, policy: str, fields: dict[str, Any]
) -> None:
    case = a_case(policy, jobs=two_jobs(**fields), instance_costs={"k80": 1e-100, "v100": 1e100})
    try:
        found = answer(written(tmp_path, case))
    except BadCase as fault:
        assert "\n" not in str(fault)
    else:
        assert found["policy"] == policy


def test_allox_takes_no_more_room_for_gpus_that_no_job_can_have(tmp_path: Path) -> None:
    many = a_case("allox", cluster={"v100": 1, "k80": 1_000_000})
    for job in many["jobs"]:
        job["steps_remaining"] = 10
    few = {**many, "cluster": {"v100": 1, "k80": 2}}
    tracemalloc.start()
    try:
        found = answer(written(tmp_path, many, "many.json"))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 20_000_000
    assert found["allocation"] == answer(written(tmp_path, few, "few.json"))["allocation"]
