"""Another policy while onesd runs: operators choose it, it is checked, and it is remembered."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from standing_onesd import served_onesd

from ones.daemon.config import Config, ConfigError
from ones.daemon.ctl.main import main
from ones.daemon.onesd.assembly import Onesd
from ones.daemon.onesd.doors.askers import Askers, Peer
from ones.daemon.onesd.doors.http import Api
from ones.daemon.onesd.events import Events
from ones.daemon.onesd.metrics import Metrics
from ones.daemon.onesd.policy_in_force import PolicyInForce
from ones.daemon.site import load_site, make_policy
from ones.policies.registry import names, settings_of
from ones.slurm_ext.errors import OnesError

SITE = """
policy = "fifo"
[gavel]
entities = "none"
weights = {physics = 2.0}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "ones.toml"
    here = f'controller = "localhost:{port}"\nsocket = "{tmp_path}/onesd.sock"\n'
    path.write_text(f'{here}store = "{tmp_path}/ones.sqlite"\n{SITE}')
    return path


@pytest.fixture
def onesd(config: Path) -> Iterator[Onesd]:
    """onesd's doors and rounds, in a thread."""
    with served_onesd(config) as onesd:
        yield onesd


def onesctl(config: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["--config", str(config), "policy", *words])


def shown(config: Path) -> dict[str, object]:
    answer = json.loads(onesctl(config, "show", "--json").stdout)
    assert isinstance(answer, dict)
    return answer


def test_list_names_every_policy_with_what_it_optimises_and_needs() -> None:
    listed = CliRunner().invoke(main, ["policy", "list", "--all", "--json"])
    rows = {row["policy"]: row for row in json.loads(listed.stdout)["policies"]}
    assert {*names()} < {*rows}
    assert rows["gavel:max_min_fairness_packed"]["needs"] == "sharing of GPUs"
    assert rows["gavel-oracle:fifo_perf"]["information"] == "truth"
    assert all(row["optimises"] for row in rows.values())
    table = CliRunner().invoke(main, ["policy", "list", "-n", "-o", "policy"]).stdout.split()
    assert len(table) == 12
    assert table[0] == "ones"
    assert {*table} < {*rows}
    assert not {name for name in table if rows[name]["information"] == "truth"}


def test_show_tells_policy_settings_and_source(config: Path, onesd: Onesd) -> None:
    answer = shown(config)
    assert (answer["policy"], answer["source"], answer["by"]) == ("fifo", "configuration", None)
    assert "policy fifo, from the configuration" in onesctl(config, "show").stdout


def test_an_operators_policy_holds_from_the_next_round_on(config: Path, onesd: Onesd) -> None:
    said = onesctl(config, "set", "gavel:max_min_fairness_perf:hold=3")
    assert said.exit_code == 0
    assert "set by" in said.stdout
    answer = shown(config)
    assert answer["policy"] == "gavel:max_min_fairness_perf:hold=3"
    settings = answer["settings"]
    assert isinstance(settings, dict)
    assert settings["hold"] == 3.0
    assert (settings["entities"], settings["weights"]) == ("none", {"physics": 2.0})
    onesd.rounds.round()
    assert onesd.service.books.store.fact("memory:gavel:max_min_fairness_perf")["form"] == 1
    assert onesd.service.books.store.row("SELECT policy FROM rounds")["policy"] == answer["policy"]  # type: ignore[index]


def test_events_cut_no_turns_short(config: Path, onesd: Onesd) -> None:
    policy = onesd.service.policy
    events = Events(load_site(config).events, Metrics(), welcome=lambda: not policy.takes_turns)
    onesctl(config, "set", "gavel:max_min_fairness_perf")
    events.happened("epilog")
    assert not events.wake.is_set()
    onesctl(config, "set", "gavel:fifo_perf")
    events.happened("epilog")
    assert events.wake.is_set()


def test_it_outlives_a_restart_until_the_default_is_asked_for(config: Path, onesd: Onesd) -> None:
    onesctl(config, "set", "srtf")
    after = PolicyInForce(load_site(config), onesd.service.books.store)
    assert (after.policy.name, after.config.policy) == ("srtf", "srtf")
    assert onesctl(config, "set", "--default").stdout.startswith("policy fifo, from the config")
    assert PolicyInForce(load_site(config), onesd.service.books.store).policy.name == "fifo"


def test_a_choice_that_became_impossible_gives_way_to_the_configuration(
    config: Path, onesd: Onesd, caplog: pytest.LogCaptureFixture
) -> None:
    onesd.service.books.store.set_fact("policy", {"name": "gavel:gone", "by": "oper", "at": 1.0})
    choice = PolicyInForce(load_site(config), onesd.service.books.store)
    assert choice.policy.name == "fifo"
    assert choice.view()["source"] == "configuration"
    assert "gavel:gone" in caplog.text


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("best", "no policy 'best'"),
        ("srtf-oracle", "knows what only a simulation can tell"),
        ("slurm", "'slurm' is for replays, to compare with"),
        ("gavel:isolated:hold=much", "its setting hold is not a number: 'much'"),
        ("gavel:max_min_fairness_packed", "[sharing] allow"),
        ("x" * 2000, "the name of a policy"),
    ],
)
def test_what_cannot_be_used_here_is_refused_in_one_line(
    config: Path, onesd: Onesd, name: str, fault: str
) -> None:
    said = onesctl(config, "set", name)
    assert said.exit_code == 1
    assert fault in said.stderr
    assert said.stderr.count("\n") == 1
    assert shown(config)["policy"] == "fifo"


def test_only_operators_choose(config: Path, onesd: Onesd, monkeypatch: pytest.MonkeyPatch) -> None:
    def ada(*_: object) -> Peer:
        return Peer(1000, "ada", admin=False)

    monkeypatch.setattr(Askers, "peer", ada)
    said = onesctl(config, "set", "srtf")
    assert said.exit_code == 4
    assert "ada is not an operator" in said.stderr
    assert shown(config)["policy"] == "fifo"


def test_usage_is_told(config: Path) -> None:
    assert onesctl(config, "set").exit_code == 2
    assert onesctl(config, "set", "srtf", "--default").exit_code == 2
    (config.parent / "onesd.sock").touch()  # nobody answers there
    assert onesctl(config, "show").exit_code == 3


def test_a_sites_weights_and_prices_reach_gavels_policies() -> None:
    config = Config(policy="gavel:isolated")
    assert settings_of(make_policy(config))["entities"] == "account"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[gavel]\nweights = {physics = 0}", "gavel.weights.physics: 0 is not above 0"),
        ("[gavel]\nweights = {physics = nan}", "gavel.weights.physics: nan is not above 0"),
        ("[gavel]\nprices = {v100 = -1.5}", "gavel.prices.v100: -1.5 is not above 0"),
        ("[gavel]\nentities = 'user'", "gavel.entities"),
        ("[gavel]\nweight = {}", "weight"),
        ("policy = 'gavel:gandiva'", "[sharing] allow"),
        ("policy = 'liquid:share_load=0.5'", "[sharing] allow"),
        ("[sharing]\nbetween = 'friends'", "sharing.between"),
        ("policy = 'gavel:max_sum_throughput_normalized_by_cost'", "price of each GPU type"),
    ],
)
def test_a_fault_in_the_configuration_is_told_with_file_and_key(
    tmp_path: Path, text: str, named: str
) -> None:
    path = tmp_path / "ones.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_site(path)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_port_that_is_taken_is_named(onesd: Onesd) -> None:
    port = onesd.service.config.controller_address[1]
    with pytest.raises(OnesError, match=f"can't listen on port {port}: .*; end what holds it"):
        asyncio.run(Api(onesd.service).serve())
