"""The configuration is strict, and says what is wrong in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.daemon.config import ConfigError, GuardConfig, load_config
from ones.daemon.site import guard_limits, load_site
from ones.policies.guard import Limits


def written(folder: Path, text: str, name: str = "ones.toml") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_an_empty_file_is_a_good_configuration_that_only_observes(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "")).mode == "observe"


def test_a_drop_in_overrides_single_keys_of_a_table(tmp_path: Path) -> None:
    path = written(tmp_path, "[guard]\ngrace_time = 5\nmin_gain = 2.0\n")
    written(tmp_path / "ones.d", "[guard]\ngrace_time = 7\n", "site.toml")
    guard = load_config(path).guard
    assert (guard.grace_time, guard.min_gain) == (7, 2.0)


def test_a_command_line_value_wins(tmp_path: Path) -> None:
    path = written(tmp_path, 'policy = "fifo"')
    assert load_site(path, {"policy": "srtf"}).policy == "srtf"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("polizy = 'ones'", "polizy"),
        ("policy = 'best'", "fifo"),
        ("mode = 'on'", "mode"),
        ("mode = 'obsrve'", "allowed: observe, act"),
        ("auth_type = 'jwt'", "allowed: auth/munge, auth/slurm"),
        ("[sharing]\nbetween = 'users'", "allowed: any, account, user"),
        ("round = 0", "round"),
        ("round = nan", "round"),
        ("controller = 'ctl'", "HOST:PORT"),
        ("[guard]\ngrace_time = 'long'", "grace_time"),
        ("[guard]\ngrace = 3", "grace"),
        ("[guard]\nfoo = 1", "guard`; known keys: exempt_time, grace_time, live_grace_time, max_"),
        ("[order]\nfoo = 1", "known keys: strictness"),
        ("= 3", "not TOML"),
        ("seed = -1", "seed"),
        ("keep_mib = inf", "keep_mib"),
        ("store = ''", "store: '' is no path"),
        ("heartbeat = ''", "heartbeat: '' is no path"),
        ('store = "/a\\u0000b"', "is no path"),
        ("[agent]\njobs_dir = ''", "agent.jobs_dir: '' is no path"),
        ("controller = 'http://ctl:7667'", "HOST:PORT"),
        ("controller = 'the ctl:7667'", "HOST:PORT"),
        (f"socket = '/run/{'a' * 103}'", "socket: its path has 108 bytes"),
        (f"[agent]\nsocket = '/run/{'ä' * 52}'", "agent.socket: its path has 109 bytes"),
        ("[events]\nsocket = ''", "events.socket: '' is no path"),
    ],
)
def test_a_fault_is_told_in_one_line_with_file_and_key(
    tmp_path: Path, text: str, named: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    message = str(caught.value)
    assert str(path) in message
    assert named in message
    assert "\n" not in message


def test_the_longest_path_of_a_socket_is_taken(tmp_path: Path) -> None:
    path = f"/run/{'a' * 102}"
    assert load_config(written(tmp_path, f"socket = '{path}'")).socket == path


def test_a_missing_file_says_how_to_name_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config or ONES_CONF"):
        load_config(tmp_path / "none.toml")


def test_the_guards_longest_wait_is_the_policies_own() -> None:
    assert guard_limits(GuardConfig()).max_wait == Limits().max_wait
