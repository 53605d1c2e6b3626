"""Checks that all ranks of a job make, one after the other: processes cost more to start than all checks together."""

import json
import traceback


def message(kind, call, *args, **kwargs):
    """What the error says that a call must raise."""
    try:
        call(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def run_checks(checks, argument, *, rank, folder, barrier):
    """Make checks, functions by name, of this rank. After one that fails the ranks are out of step, so it is the last."""
    outcomes = {}
    for name, check in checks.items():
        try:
            check(argument)
            outcomes[name] = ""
        except Exception:
            outcomes[name] = traceback.format_exc()
        (folder / f"outcomes.{rank}.json").write_text(json.dumps(outcomes))
        if outcomes[name]:
            break
        barrier()


def outcomes_in(folder, ranks):
    """Of each rank what its checks came to: name -> "" or a traceback."""
    files = [folder / f"outcomes.{rank}.json" for rank in range(ranks)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in files]


def assert_passed(outcomes, said, check):
    """That a check passed on all ranks; `said` is what each of them wrote."""
    for rank, (outcome, words) in enumerate(zip(outcomes, said, strict=True)):
        assert outcome.get(check, f"not reached\n{words}") == "", f"rank {rank}:\n{outcome.get(check, words)}"
