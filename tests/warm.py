"""Scripts in processes that begin with headrace imported: forked from a server that did nothing else, which saves seconds each."""

import atexit
import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch", "headrace"])


class Python:
    """`python script arguments...` as a process, with the methods of `subprocess.Popen` that tests use.

    What is written goes to the file `said`, errors to `errors` or there as well. A program or a module may stand for a script:
    ("-c", text), ("-m", name).
    """

    def __init__(self, *command, said, errors=None, environment=None, folder=None):
        environment = dict(os.environ if environment is None else environment)
        work = (list(map(str, command)), str(said), str(errors or ""), environment, str(folder or Path.cwd()))
        self._process = _SERVER.Process(target=_run, args=work)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("python", timeout)
        return self._process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def run(*command, folder, environment=None, seconds=300):
    """Run it to its end, with `folder` as its place and for what it says."""
    said, errors = Path(folder) / "said.txt", Path(folder) / "errors.txt"
    process = Python(*command, said=said, errors=errors, environment=environment, folder=folder)
    try:
        process.wait(seconds)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(command, process.returncode, said.read_text(), errors.read_text())


def _run(command, said, errors, environment, folder):
    for place, stream in ((said, (1,) if errors else (1, 2)), (errors, (2,))):
        if place:
            file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number in stream:
                os.dup2(file, number)
            os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    _allow_threads()
    os._exit(_ended(command))


def _allow_threads():
    """Work goes on with one thread in a forked child, as the others stay behind. The server never had any: there may be more."""
    import torch

    from headrace._arrays import thread_count

    maps = Path("/proc/self/maps")
    for library in {line.split()[-1] for line in maps.read_text().splitlines() if "libgomp" in line} if maps.exists() else ():
        ctypes.CDLL(library).omp_set_max_active_levels(1)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or thread_count(None)))


def _ended(command):
    """The exit status of the program, after what an interpreter does at its end."""
    code = 0
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    try:
        try:
            if command[0] == "-c":
                sys.argv, main = ["-c", *command[2:]], type(sys)("__main__")
                sys.modules["__main__"] = main
                exec(compile(command[1], "<string>", "exec"), main.__dict__)
            elif command[0] == "-m":
                sys.argv = command[1:]
                runpy.run_module(command[1], run_name="__main__", alter_sys=True)
            else:
                sys.argv = command
                sys.path.insert(0, str(Path(command[0]).parent))
                runpy.run_path(command[0], run_name="__main__")
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except KeyboardInterrupt:
            traceback.print_exc()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException:
            traceback.print_exc()
            code = 1
        threading._shutdown()
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code
