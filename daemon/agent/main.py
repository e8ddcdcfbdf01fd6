"""The command line of ones-agent."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import re
import signal
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import aiohttp
import click

from ones.daemon.agent.metrics import serve
from ones.daemon.agent.node import NodeAgent
from ones.daemon.agent.nvml import Nvml
from ones.daemon.agent.push import Onesd, signed_by
from ones.daemon.agent.sampler import Sampler
from ones.daemon.config import Config, ConfigError, load_config
from ones.daemon.journal import setup_logging
from ones.daemon.signatures import signatures_of
from ones.daemon.systemd import notify
from ones.slurm_ext.errors import OnesError

log = logging.getLogger(__name__)
_NODE = re.compile(r"[\w.-]{1,255}", re.ASCII)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=click.Path(path_type=Path), help="Instead of /etc/ones/ones.toml.")
@click.option("--node", help="The node's name in Slurm, instead of this host's short name.")
@click.option("--require-gpu", is_flag=True, help="End with an error where NVML finds no GPU.")
@click.version_option(package_name="ones-slurm")
def main(config: Path | None, node: str | None, *, require_gpu: bool) -> None:
    """The agent of ONES for Slurm on a GPU node: telemetry, and the door for job reports."""
    sampler = Sampler(Nvml())
    try:
        loaded, name = load_config(config), _node_name(node)
        setup_logging()
        asyncio.run(_run(loaded, name, sampler, require_gpu=require_gpu))
    except OnesError as fault:
        click.echo(f"ones-agent: error: {fault}", err=True)
        sys.exit(2 if isinstance(fault, ConfigError) else 1)
    finally:
        sampler.close()
        if sampler.stuck:
            os._exit(1)  # Python would wait for the driver, and that may hang for ever


async def _run(config: Config, node: str, sampler: Sampler, *, require_gpu: bool) -> None:
    readings, note = await sampler.sample()
    if require_gpu and not readings:
        raise OnesError(f"{note}; install the driver, or start without --require-gpu")
    signatures = signatures_of(config.auth_type)
    async with aiohttp.ClientSession() as session:
        agent = NodeAgent(
            node=node,
            version=_version(),
            config=config.agent,
            sampler=sampler,
            onesd=Onesd(
                session,
                config.controllers,
                node,
                signatures.sign,
                signed_by(_uids(config.controller_user), signatures),
                scheme=signatures.scheme,
            ),
            stage_folder=config.staging.folder,
        )
        server = await agent.open()
        try:
            runner = await serve(agent.metrics, config.agent.metrics)
        except OnesError as fault:
            log.error("%s; the agent goes on without", fault)
            runner = None
        log.info(
            "ones-agent is up: node %s, %d GPUs, jobs report on %s, onesd at %s",
            node,
            len(readings),
            config.agent.socket,
            " or ".join(config.controllers),
        )
        work = asyncio.create_task(agent.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        notify("READY=1")
        try:
            await work
        except asyncio.CancelledError:
            notify("STOPPING=1")
        server.close()
        Path(config.agent.socket).unlink(missing_ok=True)
        if runner is not None:
            await runner.cleanup()
    log.info("ones-agent is down")


def _node_name(given: str | None) -> str:
    name = given or os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    if not _NODE.fullmatch(name):
        raise OnesError(f"'{name}' is no node name; give Slurm's with --node")
    return name


def _uids(controller_user: str) -> set[int]:
    """Who may have signed an answer: onesd's user, where this node knows him, root, and our own."""
    known = {0, os.geteuid()}
    try:
        return known | {pwd.getpwnam(controller_user).pw_uid}
    except KeyError:
        log.warning(
            "no user %s here: only root's answers are taken for onesd's; see controller_user",
            controller_user,
        )
        return known


def _version() -> str:
    try:
        return version("ones-slurm")
    except PackageNotFoundError:
        return "unknown"  # run from a source tree
