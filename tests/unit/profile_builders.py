"""Small profiles of applications, written as the published ones are."""

from __future__ import annotations

from pathlib import Path

PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,8,0.2,0.0
1,16,0.3,0.0
1,32,0.7,0.0
2,8,0.3,0.1
2,16,0.4,0.1
2,32,0.8,0.1
11,8,0.4,0.2
11,16,0.5,0.2
11,32,0.9,0.2
12,8,0.5,0.3
12,16,0.6,0.3
12,32,1.0,0.3
22,8,0.6,0.4
22,16,0.7,0.4
22,32,1.1,0.4
"""
SCALABILITY = """num_nodes,num_replicas,local_bsz,step_time,sync_time
4,4,8,0.8,0.6
4,4,32,1.3,0.6
4,8,8,1.0,0.8
4,8,32,1.5,0.8
"""
VALIDATION = """progress,iteration,metric,grad_sqr,grad_var
100,100,1,4.0,8.0
250,250,2,2.0,8.0
400,400,3,1.0,8.0
"""
LARGER = """progress,iteration,metric,grad_sqr,grad_var
90,30,1,6.0,24.0
260,80,2,2.0,16.0
410,120,3,1.0,16.0
"""


def a_profile(folder: Path, name: str = "plain", **changed: str) -> Path:
    """The folder of profiles with one application in it; files are replaced by keyword."""
    files = {
        "placements.csv": PLACEMENTS,
        "scalability.csv": SCALABILITY,
        "validation-16.csv": VALIDATION,
        "validation-64.csv": LARGER,
    }
    files |= {key.replace("__", "-") + ".csv": text for key, text in changed.items()}
    _write(folder / name, files)
    return folder


def a_typed_profile(folder: Path, name: str = "plain", types: tuple[str, ...] = ("old",)) -> Path:
    """The same in the world of Sia, alike on every type."""
    files = {"validation-16.csv": VALIDATION, "validation-64.csv": LARGER}
    for kind in types:
        files[f"placements-{kind}.csv"] = PLACEMENTS
        files[f"scalability-{kind}.csv"] = SCALABILITY
    _write(folder / name, files)
    return folder


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
