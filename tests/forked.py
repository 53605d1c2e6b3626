"""Work in children made by fork, each of which must end in time."""

import multiprocessing
import pickle
import traceback

FORK = multiprocessing.get_context("fork")


class Child:
    """A forked process that does `work()`."""

    def __init__(self, work):
        self._answer, answer = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=_serve, args=(work, answer))
        self.process.start()
        answer.close()

    def result(self, seconds=60):
        """What `work` returned; its error is raised here. AssertionError if it hangs or dies."""
        try:
            assert self._answer.poll(seconds), f"a forked child hangs: {work_of(self.process.pid)}"
            try:
                value, error = pickle.loads(self._answer.recv_bytes())
            except EOFError:
                self.process.join(seconds)
                raise AssertionError(f"a forked child died with exit code {self.process.exitcode}") from None
            assert error is None, error
            return value
        finally:
            self.kill()

    def kill(self):
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self._answer.close()


def work_of(pid):
    try:
        with open(f"/proc/{pid}/wchan") as file:
            return file.read() or "?"
    except OSError:
        return "?"


def _serve(work, answer):
    try:
        told = work(), None
    except BaseException:
        told = None, traceback.format_exc()
    answer.send_bytes(pickle.dumps(told))  # tensors whole: the child is gone when they are looked at


def in_child(work, seconds=60):
    """What `work()` returns in a forked child."""
    return Child(work).result(seconds)
