# cython: language_level=3
"""Jobs, nodes and switches as plain values, each as Slurm sent it.

PySlurm's own attributes lose some: `Job.state` hides the state under a flag such as COMPLETING,
`tres_per_*` drops counts written with a colon, and a name that is not UTF-8 raises. Compiled into
PySlurm, because only there can the structs of its objects be reached.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport FILE, fclose
from libc.stdlib cimport free

from pyslurm cimport slurm
from pyslurm.core.error import verify_rpc
from pyslurm.core.job.job cimport Job
from pyslurm.core.node cimport Node


cdef extern from "<stdio.h>":
    FILE *open_memstream(char **text, size_t *size)


# What differs between the releases that this is built for.
cdef extern from "slurm/slurm.h":
    """
    #if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(26, 5, 0)
    #define ONES_LIBRARY 42
    #define ONES_JOB_EXPEDITING 0
    #define ones_free_configuration slurm_free_ctl_conf
    #define ones_load_topology(message) slurm_load_topo(message)
    #define ones_print_topology(out, message) slurm_print_topo_info_msg(out, message, NULL, 1)
    #else
    #define ONES_LIBRARY 45
    #define ONES_JOB_EXPEDITING JOB_EXPEDITING
    #define ones_free_configuration slurm_free_conf
    #define ones_load_topology(message) slurm_load_topo(message, NULL)
    #define ones_print_topology(out, message) slurm_print_topo_info_msg(out, message, NULL, NULL, 1)
    #endif
    """
    const int SLURM_VERSION_NUMBER
    const uint64_t MEM_PER_CPU
    const int ONES_LIBRARY
    const int ONES_JOB_EXPEDITING
    ctypedef struct sent_topology "topo_info_response_msg_t":
        pass
    void ones_free_configuration(slurm.slurm_conf_t *configuration)
    int ones_load_topology(sent_topology **message)
    void ones_print_topology(FILE *out, sent_topology *message)
    void slurm_free_topo_info_msg(sent_topology *message)
    ctypedef struct sent_node "node_info_t":
        char *gres_used


# The names of Slurm's JSON; its own function for names answers PENDING for those it lacks.
JOB_FLAGS = (
    (slurm.JOB_LAUNCH_FAILED, "LAUNCH_FAILED"),
    (slurm.JOB_REQUEUE, "REQUEUED"),
    (slurm.JOB_REQUEUE_HOLD, "REQUEUE_HOLD"),
    (slurm.JOB_SPECIAL_EXIT, "SPECIAL_EXIT"),
    (slurm.JOB_RESIZING, "RESIZING"),
    (slurm.JOB_CONFIGURING, "CONFIGURING"),
    (slurm.JOB_COMPLETING, "COMPLETING"),
    (slurm.JOB_STOPPED, "STOPPED"),
    (slurm.JOB_RECONFIG_FAIL, "RECONFIG_FAIL"),
    (slurm.JOB_POWER_UP_NODE, "POWER_UP_NODE"),
    (slurm.JOB_REVOKED, "REVOKED"),
    (slurm.JOB_REQUEUE_FED, "REQUEUE_FED"),
    (slurm.JOB_RESV_DEL_HOLD, "RESV_DEL_HOLD"),
    (slurm.JOB_SIGNALING, "SIGNALING"),
    (slurm.JOB_STAGE_OUT, "STAGE_OUT"),
    (ONES_JOB_EXPEDITING, "EXPEDITING"),
)


cdef text(const char *value):
    if value == NULL:
        return ""
    return (<bytes>value).decode("utf-8", "replace")


cdef number(unsigned long long value, unsigned long long absent, unsigned long long unlimited):
    if value == absent:
        return None
    return -1 if value == unlimited else value


cdef count(uint32_t value):
    return number(value, slurm.NO_VAL, slurm.INFINITE)


cdef small(uint32_t value):
    return number(value, slurm.NO_VAL16, slurm.INFINITE16)


cdef memory(uint64_t value):
    """MiB, and of what: a flag in the number says so."""
    if value in (slurm.NO_VAL64, slurm.INFINITE64):
        return 0, ""
    if value & MEM_PER_CPU:
        return value & ~MEM_PER_CPU, "cpu"
    return value, "node"


# The interface number (API_CURRENT) of that release's libslurm.
LIBRARY = ONES_LIBRARY


def built_for():
    """Slurm's release at compile time, such as (24, 11, 5)."""
    return (SLURM_VERSION_NUMBER >> 16, SLURM_VERSION_NUMBER >> 8 & 255, SLURM_VERSION_NUMBER & 255)


def library():
    """The interface number of the libslurm in use; it grows with each release."""
    return slurm.slurm_api_version() >> 16


def controller():
    """The release that slurmctld says it is of, such as "24.11.5"."""
    cdef slurm.slurm_conf_t *conf = NULL
    verify_rpc(slurm.slurm_load_ctl_conf(0, &conf))
    try:
        return text(conf.version)
    finally:
        ones_free_configuration(conf)


def job_fields(Job job):
    """The fields of a job; None where Slurm sent that there is no value, -1 for no limit."""
    cdef slurm.slurm_job_info_t *info = job.ptr
    amount, of = memory(info.pn_min_memory)
    return {
        "id": info.job_id,
        "array_job": info.array_job_id,
        "array_task": count(info.array_task_id),
        "array_tasks": text(info.array_task_str),
        "name": text(info.name),
        "uid": info.user_id,
        "user": text(info.user_name),
        "account": text(info.account),
        "partition": text(info.partition),
        "qos": text(info.qos),
        "state": text(slurm.slurm_job_state_string(info.job_state & slurm.JOB_STATE_BASE)),
        "flags": [name for flag, name in JOB_FLAGS if info.job_state & flag],
        "reason": text(slurm.slurm_job_state_reason_string(info.state_reason)),
        "reason_text": text(info.state_desc),
        "priority": info.priority,
        "nice": <long>info.nice - 0x80000000,  # NICE_OFFSET of slurm.h
        "restarts": info.restart_cnt,
        "requeue": info.requeue,
        "submitted": info.submit_time,
        "eligible": info.eligible_time,
        "started": info.start_time,
        "ended": info.end_time,
        "exit": count(info.exit_code),  # as of waitpid
        "time_limit": count(info.time_limit),
        "least_nodes": count(info.num_nodes),
        "most_nodes": count(info.max_nodes),
        "tasks": count(info.num_tasks),
        "tasks_per_node": small(info.ntasks_per_node),
        "cpus": count(info.num_cpus),
        "cpus_per_task": small(info.cpus_per_task),
        "tres_per_job": text(info.tres_per_job),
        "tres_per_node": text(info.tres_per_node),
        "tres_per_task": text(info.tres_per_task),
        "tres": text(info.tres_alloc_str) or text(info.tres_req_str),
        "cpus_per_gpu": text(info.cpus_per_tres),
        "memory": amount,
        "memory_of": of,
        "memory_per_gpu": text(info.mem_per_tres),
        "licenses": text(info.licenses),
        "features": text(info.features),
        "dependency": text(info.dependency),
        "required_nodes": text(info.req_nodes),
        "excluded_nodes": text(info.exc_nodes),
        "nodes": text(info.nodes),
        "gres": [text(info.gres_detail_str[index]) for index in range(info.gres_detail_cnt)],
        "batch_host": text(info.batch_host),
        "admin_comment": text(info.admin_comment),
        "reservation": text(info.resv_name),
    }


def allocated(Node node):
    """The CPUs and the MiB that jobs have been given of a node; the select plugin may not say."""
    try:
        return node.allocated_cpus, node.allocated_memory
    except Exception:
        return 0, 0


def node_fields(Node node):
    """The fields of a node."""
    cpus, memory_given = allocated(node)
    cdef char *state = slurm.slurm_node_state_string_complete(node.info.node_state)
    states = text(state)
    slurm.xfree(state)
    return {
        "name": text(node.info.name),
        "states": states,
        "reason": text(node.info.reason),
        "gres": text(node.info.gres),
        "gres_used": text((<sent_node*>node.info).gres_used),
        "cpus": node.info.cpus_efctv,
        "cpus_used": cpus,
        "memory": node.info.real_memory,
        "memory_used": memory_given,
        "partitions": text(node.info.partitions),
        "features": text(node.info.features_act or node.info.features),
    }


def topology():
    """The switches as `scontrol show topology` prints them.

    What slurm.h offers, the array in the message, Slurm leaves empty; only the topology
    plugin can read the answer.
    """
    cdef sent_topology *message = NULL
    cdef char *lines = NULL
    cdef size_t size = 0
    cdef FILE *stream
    verify_rpc(ones_load_topology(&message))
    stream = open_memstream(&lines, &size)
    try:
        ones_print_topology(stream, message)
    finally:
        fclose(stream)
        slurm_free_topo_info_msg(message)
    try:
        return text(lines)
    finally:
        free(lines)
