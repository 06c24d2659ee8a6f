"""A Python interpreter that starts at once: asks ``warm_server`` for a process, and ends as this one ends.

``processes`` copies this file into an executable one.
"""

import json
import os
import signal
import socket
import sys

arguments = sys.argv[1:]
if os.path.basename(sys.argv[0]) == "ding-lite":
    arguments = ["-m", "ding_lite", *arguments]
job = {"arguments": arguments, "cwd": os.getcwd(), "environment": dict(os.environ), "max_file": None}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "socket"))
    socket.send_fds(server, [json.dumps(job).encode()], [0, 1, 2])
    server.recv(16)  # the process id
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: server.send(b"%d" % number))
    code = int(server.recv(16))
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
