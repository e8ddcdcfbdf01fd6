"""Inputs that once found something, by target: each is fed again in the unit tests."""

from __future__ import annotations

import json

from fuzz import slurm_answers as slurm
from fuzz.doors import a_request
from fuzz.files import CONFIG, NAMED
from fuzz.messages import NODE

_LONG = NODE.replace(b'"op":"live"', b'"op":"' + b"x" * 5000 + b'"')
FOUND: dict[str, tuple[bytes, ...]] = {
    # ClusterShell took a number beside brackets as a part of those in them: many names.
    "hostlists": (
        b"n[1-2]21474836482",
        b"n[1-9/2],x[08-\r\n11]y",
        b"n[1-3,7]" + b"9" * 5000,
        b"999[1-37]",
    ),
    "gres-detail": (b"n[1-2]21474836482\x1eshard:v0:1(1/2)", b"\r\nn[1-9"),
    "topology": (
        b"SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-4]9223372036854775808\n",
        b"SwitchName=" * 6000,
    ),
    # Spelt out, foreign text was several times as long as it may be.
    "onesd-answers": (b'{"error":"' + "\ufeff".encode() * 200 + b'"}',),
    # Work that grew with the square of the text.
    "tres": (b"(" * 65536, b"shard:" * 10000, b"shard:1(" + b"9" * 5000 + b"/2)"),
    "sizes": (b"2-1\r\n6",),
    "mark": ("ONES1:sizes=2-16;request\u2028".encode(),),
    "node-json": (slurm._as_json("nodes", {"name": "\u2028", "state": [0]}),),
    "priorities": (
        slurm.CONFIG
        + b'\x1e{"partitions": [{"name": "gpu", "maximums": {"time": Infinity},'
        + b' "priority": {"job_factor": 1, "tier": 2}, "tres": {"configured": ""}}]}',
    ),
    "pyslurm": (
        b"2",
        b"{",
        b"\xff",
        b"[" * 20000,
        b'"n[1-2]"',
        b'{"error": NaN}',
        b'{"error": 1, "unreachable": 1}',
        b'{"jobs": [Infinity], "gone": [], "nodes": [], "topology": ""}',
        b'{"jobs": [], "gone": [], "nodes": ["x"], "topology": ""}',
        b'{"jobs": [], "gone": [], "nodes": [], "topology": 5.5}',
        b'{"jobs": 5, "gone": [], "nodes": [], "topology": ""}',
        *(
            json.dumps(slurm.RELEASES | change).encode()
            for change in (
                {"built_for": -1},
                {"controller": 0},
                {"controller": "\u2028"},
                {"built_for_library": "9" * 5000},
            )
        ),
        b'{"built_for": [24, 11, 5]}',
    ),
    "policy-names": (b"ones:generations=1\r\n", b"\r\n"),
    "join-file": (
        b'{"host": "n1", "port": -Infinity, "control": "x", "secret": "00ff"}',
        b"[" * 20000,
    ),
    "traces": (NAMED.replace(b"plain", b"p" * 300),),  # too long for the name of a folder
    "throughputs": (b"[" * 20000, b"9" * 5000),
    "configuration": (
        b"round = " + b"9" * 5000,
        b"round = " + b"[" * 20000,
        CONFIG.replace(b"0.0.0.0", b"9" * 5000),
        b"[gavel" + b".pl" * 20000 + b"]",
    ),
    "limits-used": (
        b"QOS=normal(1) UsageRaw=1.0 GrpTRESMins=" + b"gres/gpu:" * 4500,
        b"Account=" * 8100,
    ),
    "clusters": (
        b"[prices]\nv100 = " + b"9" * 400,
        b"[[nodes]]\ngpus = " + b"9" * 5000,
        b"[[nodes]]\ngpus = " + b"[" * 20000,
    ),
    "batch-scripts": (b"#!/bin/bash\n#SBATCH --gpus=" + b"=v10s" * 1000,),
    # What can't be read was answered with, however long it was.
    "door-onesd": (
        b"GET / HTTP/1.1\r\nHost:\r\nExpect:\xff\r\n\r\n",
        b"GET /v1/status HTTP/0\r\n\r\n",
        # Signed by an agent that names no node: a KeyError.
        a_request("POST", "/v1/agent", NODE, Authorization="Munge 0"),
        a_request("GET", "/v1/lease/3", Authorization="Munge 0"),
        a_request("POST", "/v1/agent", _LONG, Authorization="Munge 0", Ones_Node="n1"),
    ),
    "door-page": (
        a_request("POST", "/sign-in", b'{"secret": "', Origin="http://localhost")[:-5],
        # Two requests on one connection, the second of which is refused: two answers.
        b"GET / HTTP/1.1\r\nHost:Cse\r\n\r\nGET /\nt: \r\n\r\n",
    ),
    "solve": (b'{"policy": "' + b"9" * 5000 + b'"}', '{"policy": "\u2028"}'.encode()),
}
