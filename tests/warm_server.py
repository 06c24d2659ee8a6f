"""The process that commands are forked from; see ``processes``. Its argument is the path of its socket.

A client connects, and sends a job with the descriptors of standard input, output and error. The answers are
the process id of the command, and its exit code when it has ended; negative where a signal ended it. What
the client sends after that are numbers of signals for the command. If the client ends, the command is killed.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import threading
import traceback

os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")


def import_what_commands_need():
    for name in (
        *("gymnasium.envs.classic_control.cartpole", "safetensors.numpy"),
        "torch._dynamo",  # an optimiser needs it
        *("ding_lite.cli", "ding_lite.envs.in_process", "ding_lite.run.display"),
        *("ding_lite.run.pipeline", "ding_lite.tools.evaluate"),
    ):
        importlib.import_module(name)


def serve(listener):
    """Forks a keeper for each client, until standard input is closed.

    Returns:
        The job, in the process that is to do it.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no keeper is waited for
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            os._exit(0)
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return keep(client)
        client.close()


def keep(client):
    """Forks the command, and reports its end; returns the job in the command's process."""
    packet, descriptors, *_ = socket.recv_fds(client, 1 << 20, 3)
    pid = os.fork()
    if pid == 0:
        client.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return json.loads(packet)
    for number in (0, 1, 2, *descriptors):
        os.close(number)
    with contextlib.suppress(OSError):
        client.send(b"%d" % pid)
        ended = os.pidfd_open(pid)
        while ended not in select.select([ended, client], [], [])[0]:
            os.kill(pid, int(client.recv(16) or signal.SIGKILL))
        client.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def do(job, path):
    """Runs what the arguments of an interpreter name: ``-m MODULE``, ``-c CODE`` or a file.

    Args:
        job: arguments, working directory, environment, and the limit of a file's size or None.
        path: ``sys.path`` without PYTHONPATH.
    """
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environment"])
    if job["max_file"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["max_file"], job["max_file"]))
    first, *rest = job["arguments"]
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *path]
    if first == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(first)))
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def do_to_the_end(job, path):
    """Does the job, and ends as an interpreter does, but without freeing all that was imported."""
    code = 0
    try:
        do(job, path)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        code = -signal.SIGINT
        traceback.print_exc()
    except BaseException:
        code = 1
        traceback.print_exc()
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    import_what_commands_need()
    gc.freeze()  # so that a search for garbage copies no pages
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        print("ready", flush=True)
        job = serve(listener)
    do_to_the_end(job, sys.path[1:])
