"""Turn PySlurm 25.11.2's sources into a reader for another release of Slurm.

patch.py RELEASE SOURCE EXACT
    Edit the unpacked sources in SOURCE for Slurm RELEASE (24.11 or 26.05) and add the module EXACT.
patch.py --check SOURCE PROTOTYPES
    After the build: no struct is laid out by PySlurm itself, and each function that it declares
    without a header is listed in PROTOTYPES.

Each edit must find what it edits exactly as often as it says, so that another PySlurm fails here,
in words, and not in a struct. What that Slurm lacks is taken away, never answered with a made-up
value.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import NoReturn

# The job and node readers need none of these; they write to Slurm, ask slurmdbd, or describe with
# PySlurm's own words structs that are private to Slurm.
UNUSED_MODULES = (
    "deprecated",
    "enums",
    "core/partition",
    "core/reservation",
    "core/slurmctld",
    "core/job/sbatch_opts",
    "core/job/stats",
    "core/job/step",
    "core/job/submission",
    "core/job/task_dist",
    "db/assoc",
    "db/job",
    "db/qos",
    "db/stats",
    "db/step",
)

# Members of classes, by file: what goes.
UNUSED_MEMBERS = {
    "core/job/job.pyx": (
        "load_steps load_stats send_signal cancel suspend unsuspend modify hold release requeue "
        "notify get_batch_script get_resource_layout_per_node _threads_per_core"
    ),
    "core/node.pyx": "create modify delete",
    "db/tres.pyx": "load",
}

# By release: fields that its job_info lacks.
LACKING = {
    "24.11": "allocated_licenses submit_line segment_size spread_segments consolidate_segments",
    "26.05": "",
}

PACKAGE = '''"""PySlurm's jobs and nodes, built for reading alone."""

import os
import sys

# PySlurm's own setting: Slurm's plugins resolve their symbols in libslurmfull.
sys.setdlopenflags(sys.getdlopenflags() | os.RTLD_GLOBAL | os.RTLD_DEEPBIND)

from .version import __version__
from .core.error import PyslurmError, RPCError
from .core.job import Job, Jobs
from .core.node import Node, Nodes
from .api import slurm_fini, slurm_init

if not os.environ.get("PYSLURM_DISABLE_AUTO_INIT"):
    slurm_init()
'''

SELECTED = """
cdef extern from "slurm/slurm.h":
    ctypedef struct dynamic_plugin_data_t:
        pass
    ctypedef struct selected_node "node_info_t":
        dynamic_plugin_data_t *select_nodeinfo
    enum:
        SELECT_NODEDATA_SUBCNT
        SELECT_NODEDATA_MEM_ALLOC
        SELECT_NODEDATA_TRES_ALLOC_FMT_STR
    int slurm_get_select_nodeinfo(dynamic_plugin_data_t *info, int kind, int state, void *answer)


cdef _selected(node_info_t *node, int kind, void *answer):
    if slurm_get_select_nodeinfo((<selected_node*>node).select_nodeinfo, kind,
                                 slurm.NODE_STATE_ALLOCATED, answer) != 0:
        raise RPCError(msg="the select plugin knows no allocation of this node")


"""

# Slurm 24.11 leaves a node's allocation with the select plugin; later ones send it with the node.
FROM_THE_SELECT_PLUGIN = (
    (1, r"^(?=cdef class Nodes)", SELECTED),
    (
        1,
        r"^( +)return u64_parse\(self\.info\.alloc_memory, on_noval=0\)",
        r"\1cdef uint64_t memory = 0\n"
        r"\1_selected(self.info, SELECT_NODEDATA_MEM_ALLOC, &memory)\n\1return memory",
    ),
    (
        1,
        r"^( +)return u16_parse\(self\.info\.alloc_cpus, on_noval=0\)",
        r"\1cdef uint16_t cpus = 0\n"
        r"\1_selected(self.info, SELECT_NODEDATA_SUBCNT, &cpus)\n\1return cpus",
    ),
    (
        1,
        r"^( +)return cstr\.to_dict\(self\.info\.alloc_tres_fmt_str\)",
        r"\1cdef char *tres = NULL\n"
        r"\1_selected(self.info, SELECT_NODEDATA_TRES_ALLOC_FMT_STR, &tres)\n"
        r"\1try:\n\1    return cstr.to_dict(tres)\n\1finally:\n\1    xfree(tres)",
    ),
)


def fail(reason: str) -> NoReturn:
    """End with one line."""
    raise SystemExit(f"patch.py: error: {reason}")


def delete(folder: Path, module: str) -> None:
    """Take a module or package away."""
    name = Path(module).name
    found = [path for path in folder.glob(f"{module}*") if path.name.split(".")[0] == name]
    if not found:
        fail(f"PySlurm has no {module}")
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def without_members(text: str, names: str, where: str) -> str:
    """The text without the methods, properties and functions of these names."""
    lines = text.splitlines(keepends=True)
    for name in names.split():
        header = re.compile(rf"( *)(def|cdef|cpdef) (.* )?{name}\(")
        found = [index for index, line in enumerate(lines) if header.match(line)]
        if not found:
            fail(f"{where} has no {name}")
        for first in reversed(found):
            start, stop = first, first + 1
            indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
            while lines[start - 1].startswith(f"{indent}@"):
                start -= 1
            while stop < len(lines) and (
                not lines[stop].strip() or lines[stop].startswith(f"{indent} ")
            ):
                stop += 1
            del lines[start:stop]
    return "".join(lines)


def edited(path: Path, edits: list[tuple[int, str, str]]) -> None:
    """Apply edits (how many matches there must be, pattern, replacement) to a file."""
    text = path.read_text()
    for times, pattern, new in edits:
        text, count = re.subn(pattern, new, text, flags=re.MULTILINE)
        if count != times:
            fail(f"{path}: {pattern!r} found {count} times, not {times}")
    path.write_text(text)


def patch(release: str, source: Path, exact: Path) -> None:
    """Edit the unpacked sources."""
    package = source / "pyslurm"
    for module in UNUSED_MODULES:
        delete(package, module)
    for name, members in UNUSED_MEMBERS.items():
        path = package / name
        path.write_text(without_members(path.read_text(), members, name))
    jobs = package / "core/job/job.pyx"
    jobs.write_text(without_members(jobs.read_text(), LACKING[release], str(jobs)))

    (package / "__init__.py").write_text(PACKAGE)
    year, month = map(int, release.split("."))
    (package / "version.py").write_text(f'__version__ = "{year}.{month}.0"\n')
    (package / "core/job/__init__.py").write_text("from .job import Job, Jobs\n")
    (package / "db/__init__.py").write_text("from .tres import TrackableResources\n")
    shutil.copy(exact, package / "exact.pyx")

    edited(
        jobs,
        [
            # One job alone, which Slurm 26.05 asks for by other words.
            (1, r"^    @staticmethod\n    def load\(job_id\):\n((        .*)?\n)+", ""),
            (5, r"^ +(self|wrap)\.(stats|steps) = Job.*\n", ""),
            (1, r"(?=slurm_job_state_reason_string\(self)", "<char*>"),
        ],
    )
    edited(
        package / "core/job/job.pxd",
        [
            (3, r"^from pyslurm\.(db\.stats|core\.job\.(step|submission)) cimport .*\n", ""),
            (6, r"^    \w*(slurm_msg_t|job_id_msg|return_code|controller_msg)\w*,\n", ""),
            (3, r"^ +(JobSteps steps|JobStatistics stats)\n", ""),
        ],
    )
    edited(
        package / "core/node.pyx",
        [
            # libslurm works out MIXED as it does for scontrol; PySlurm's own way overlooks GPUs.
            (1, r"int flags = slurm\.SHOW_ALL", r"int flags = slurm.SHOW_MIXED | slurm.SHOW_ALL"),
            *(FROM_THE_SELECT_PLUGIN if release == "24.11" else ()),
        ],
    )
    edited(
        package / "slurm/extra.pxi",
        [
            # Structs private to Slurm, laid out as in another release of it.
            (
                1,
                r"^ctypedef enum persist_conn_type_t:\n(?s:.*)(?=^ctypedef enum tres_types_t:)",
                r"cdef extern from *:\n    ctypedef struct job_resources\n\n",
            ),
            # The prototypes that Slurm's own source has (prototypes.h).
            (1, r"slurm_mins2time_str\(time_t ", "slurm_mins2time_str(uint32_t "),
            (1, r"slurm_parse_time\(char ", "slurm_parse_time(const char "),
            (1, r"slurm_job_state_string\(uint16_t ", "slurm_job_state_string(uint32_t "),
            (
                1,
                r"char \*slurm_job_state_reason_string\(int ",
                "const char *slurm_job_state_reason_string(uint32_t ",
            ),
        ],
    )
    edited(
        package / "settings.pyx",
        [
            (1, r"^ +from pyslurm\.core import slurmctld\n", ""),
            (1, r"^    if not LOCAL_CLUSTER:\n(        .*\n)+", ""),
        ],
    )


def check(source: Path, prototypes: Path) -> None:
    """Refuse a build in which PySlurm's own words describe what only Slurm's sources know."""
    known = set(re.findall(r"\b(\w+)(?=\(|;)", prototypes.read_text()))
    for path in sorted((source / "pyslurm").rglob("*.c")):
        text = path.read_text()
        own = re.findall(r"^struct __pyx_t_7pyslurm_5slurm_(\w+) \{", text, re.MULTILINE)
        if own:
            fail(f"{path} lays out itself: {', '.join(own)}")
        declared = re.findall(r"^__PYX_EXTERN_C .*?\b(\w+)(?=\(|;)(?!\(\w+\) )", text, re.MULTILINE)
        unknown = sorted(set(declared) - known)
        if unknown:
            fail(f"{path} declares without a header: {', '.join(unknown)}")


def main() -> None:
    """Patch or check, as the command line says."""
    match sys.argv[1:]:
        case ["--check", source, prototypes]:
            check(Path(source), Path(prototypes))
        case [release, source, exact] if release in LACKING:
            patch(release, Path(source), Path(exact))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
