"""The patch that makes PySlurm a reader for another Slurm fails in words where it does not fit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BUILD = Path(__file__).parents[2] / "slurm_ext" / "pyslurm_build"
SOURCE = '''\
cdef class Job:

    @property
    def name(self):
        return 1

    @staticmethod
    def load(job_id,
             more=None):
        """Text.

        More of it.
        """
        return 2

    def stays(self):
        return 3


cdef _helper(char *host):
    return 1
'''


@pytest.fixture(scope="module")
def patch() -> ModuleType:
    """patch.py, which is a program and in no package."""
    spec = importlib.util.spec_from_file_location("pyslurm_patch", BUILD / "patch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_member_goes_with_its_decorator_and_all_its_lines(patch: ModuleType) -> None:
    left = patch.without_members(SOURCE, "name load _helper", "job.pyx")
    assert left == "cdef class Job:\n\n    def stays(self):\n        return 3\n\n\n"


def test_a_member_that_is_not_there_is_named(patch: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"job\.pyx has no submit"):
        patch.without_members(SOURCE, "submit", "job.pyx")


def test_an_edit_that_does_not_fit_changes_nothing(patch: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "job.pyx"
    path.write_text(SOURCE)
    with pytest.raises(SystemExit, match="found 4 times, not 1"):
        patch.edited(path, [(1, r"return \d", "return 9"), (1, "return", "give")])
    assert path.read_text() == SOURCE


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("struct __pyx_t_7pyslurm_5slurm_slurm_msg_t {\n", "lays out itself: slurm_msg_t"),
        ("__PYX_EXTERN_C DL_IMPORT(int) slurm_new_thing(char *); /*proto*/\n", "slurm_new_thing"),
        ("__PYX_EXTERN_C DL_IMPORT(slurm_conf_t) other_conf;\n", "other_conf"),
    ],
)
def test_what_only_slurms_sources_know_is_refused(
    patch: ModuleType, tmp_path: Path, code: str, fault: str
) -> None:
    (tmp_path / "pyslurm").mkdir()
    (tmp_path / "pyslurm" / "job.c").write_text(code)
    with pytest.raises(SystemExit, match=fault):
        patch.check(tmp_path, BUILD / "prototypes.h")


def test_declared_prototypes_pass(patch: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "pyslurm").mkdir()
    (tmp_path / "pyslurm" / "job.c").write_text(
        "struct __pyx_t_7pyslurm_5slurm_slurm_msg_t;\n"
        "__PYX_EXTERN_C DL_IMPORT(char) *slurm_job_state_string(uint32_t); /*proto*/\n"
        "__PYX_EXTERN_C DL_IMPORT(slurm_conf_t) slurm_conf;\n"
    )
    patch.check(tmp_path, BUILD / "prototypes.h")
