"""The attackers for a few seconds, and the seeds that once failed. `make soak` runs them for long."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import soak

from child import run_python

FOLDER = Path(__file__).parent


def attacked(name: str, *arguments: str) -> dict:
    done = run_python(str(FOLDER / f"{name}.py"), *arguments, "--json")
    assert done.stdout, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_what_is_killed_and_goes_on_ends_as_if_it_had_not_been():
    counts = attacked("kill", "--seed", "1", "--kills", "3", "--only", "link in memory")
    assert counts["failures"] == []
    assert counts["kills"] >= 3
    assert counts["equal"] == counts["attacks"]


def test_a_killed_partition_leaves_whole_parts_and_can_be_started_again():
    counts = attacked("kill", "--seed", "4", "--kills", "8", "--only", "partition")
    assert counts["failures"] == []
    assert counts["kills"] >= 8
    assert counts["equal"] == counts["attacks"]


def test_bad_commands_are_refused_in_a_sentence():
    counts = attacked("fuzz_commands", "--seed", "50", "--commands", "8")
    assert counts["failures"] == []
    assert counts["commands"] == 8
    assert counts["refused"] > 2


def test_hostile_calls_are_errors_or_results():
    counts = attacked("fuzz_api", "--seed", "1", "--calls", "150")
    assert counts["failures"] == []
    assert counts["calls"] == 150
    assert counts["errors"] > 30


def test_a_soak_adds_up_what_attackers_count_and_remembers_seeds(tmp_path, monkeypatch, capsys):
    program = tmp_path / "kill.py"
    program.write_text(
        "import json, sys\nseed = int(sys.argv[2])\nfailed = [{'seed': seed + 1}] if seed == 0 else []\n"
        "print(json.dumps({'seed': seed, 'attacks': 2, 'kills': 2, 'equal': 2 - len(failed), 'corruptions': len(failed), "
        "'failures': failed}))\n"
    )
    monkeypatch.setattr(soak, "FOLDER", tmp_path)
    work = soak.Soak(0.02, seed=0)
    work.run()
    assert "fuzz_native.py is not here" in capsys.readouterr().out
    assert work.sums["kill"]["kills"] >= 4
    assert "| corruptions | 1 |" in work.table()
    assert work.failures == [{"attacker": "kill", "seed": 1}]
    for _ in range(2):
        soak.remember(work.failures, tmp_path / "seeds.json")
    assert json.loads((tmp_path / "seeds.json").read_text()) == work.failures


_KNOWN = json.loads(soak.SEEDS.read_text(encoding="utf-8"))
_FAILED = [attacker for attacker in soak.ATTACKERS if any(one["attacker"] == attacker.name for one in _KNOWN)]


@pytest.mark.parametrize(
    "attacker",
    [pytest.param(one, marks=pytest.mark.slow if one.name == "kill" else ()) for one in _FAILED],
    ids=lambda attacker: attacker.name,
)
def test_seeds_that_once_failed(attacker):
    known = [one for one in _KNOWN if one["attacker"] == attacker.name]
    if attacker.name == "kill":  # a seed draws the same faults for its command, whatever commands there are beside it
        ways = [["--only", one["command"], "--seeds", str(one["seed"])] for one in known]
    elif attacker.name in ("fuzz_commands", "fuzz_api"):
        ways = [["--seeds", ",".join(str(one["seed"]) for one in known)]]
    else:
        ways = [["--seed", str(one["seed"]), attacker.amount, "1"] for one in known]
        ways = [[*way, "--first", str(one["call"])] if "call" in one else way for way, one in zip(ways, known, strict=True)]
    for way in ways:
        counts = attacked(attacker.name, *way)
        assert not counts.get("failures")
        assert not any(counts.get(name, 0) for name in ("crashes", "hangs", "tracebacks", "corruptions"))
