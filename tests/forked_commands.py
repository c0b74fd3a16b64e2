"""`reroll` as a command whose process, trainer and engine are forked from one that has imported torch and
transformers already.

They are processes like any other, with a group of their own, signals and exit codes; that two of every run import the
same for seconds is not what tests of kills and resumes are about.
"""

import os
import pickle
import select
import signal
import socket
import struct
import sys
from contextlib import contextmanager
from pathlib import Path

from forked_workers import FORKED, forkserver

from reroll.workers import process, serve

NUMBER = struct.Struct("i")


class ForkedCommand:
    """What tests ask of the `subprocess.Popen` of a command in a process group of its own.

    Args:
        arguments: what follows `reroll` on the command line.
        log: the file that all its output is added to.
        before: a function that its process calls first.
    """

    def __init__(self, arguments, log, before=None):
        given = (list(arguments), os.getcwd(), dict(os.environ), str(log), before)
        Path(log).touch()
        self._process = forkserver().Process(target=_command, args=given)
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    @property
    def returncode(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)


def _command(arguments, folder, environment, log, before):
    from reroll.cli import main

    os.setpgid(0, 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with open(log, "ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    sys.stdout.reconfigure(line_buffering=True)
    sys.argv = ["reroll", *arguments]
    if before is not None:
        before()
    with _workers_of(Nursery()):
        main()


@contextmanager
def _workers_of(nursery):
    plain = process._spawn

    def spawn(spec, connection, output):
        if spec.target.startswith(FORKED):
            return nursery.start(spec, connection, output)
        return plain(spec, connection, output)

    process._spawn = spawn
    try:
        yield
    finally:
        process._spawn = plain


class Nursery:
    """A process without threads, forked before the command has any, that forks the command's workers."""

    def __init__(self):
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._channel.close()
            _tend(theirs)
        theirs.close()

    def start(self, spec, connection, output):
        told, tell = os.pipe()
        files = [connection.fileno(), output.fileno(), tell]
        socket.send_fds(self._channel, [pickle.dumps(dict(spec.environment))], files)
        os.close(tell)
        return _Fork(told)


class _Fork:
    """What a `ProcessWorker` asks of a `subprocess.Popen`."""

    def __init__(self, told):
        self._told, self._code = told, None
        self.pid = self._next()

    def _next(self):
        """What the keeper tells next; None if it is no more."""
        read = os.read(self._told, NUMBER.size)
        return NUMBER.unpack(read)[0] if read else None

    def poll(self):
        if self._code is None and select.select([self._told], [], [], 0)[0]:
            code = self._next()
            self._code = -signal.SIGKILL if code is None else code
            os.close(self._told)
        return self._code

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


def _tend(channel):
    """Forks a keeper for every worker until the command is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, files, *_ = socket.recv_fds(channel, 1 << 16, 3)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            channel.close()
            _keep(pickle.loads(message), *files)
        for file in files:
            os.close(file)


def _keep(environment, connection, output, tell):
    """Only a worker's parent learns how it ended, so each has one that tells the command, which is no relation."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    worker = os.fork()
    if worker == 0:
        os.close(tell)
        os.environ.update(environment)
        for number in (1, 2):
            os.dup2(output, number)
        sys.argv = ["serve", str(connection)]
        serve.main()
        os._exit(1)
    os.close(connection)
    os.close(output)
    os.write(tell, NUMBER.pack(worker))
    _, status = os.waitpid(worker, 0)
    os.write(tell, NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)
