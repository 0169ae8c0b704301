"""Both programs of the stand-in; the name under which it is called says which, see `put`."""

import os
import signal
import socket
import subprocess
import sys
import time

PIPE = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
LOG = os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps")
SOCKET = os.path.join(PIPE, "control")
PID = os.path.join(PIPE, "nvidia-cuda-mps-control.pid")
FAULT = os.environ.get("FAKE_MPS", "")


class Daemon:
    def __init__(self):
        self.servers = []
        self.percent = 100.0
        self.limits = {}

    def answer(self, line):
        word, *rest = line.split() or [""]
        command = getattr(self, f"do_{word}", None)
        if command is None:
            return f"Unknown command: {word}"
        try:
            return command(*rest)
        except (TypeError, ValueError) as error:
            return f"Invalid arguments: {error}"

    def do_start_server(self, flag, uid):
        if flag != "-uid" or int(uid) != os.getuid():
            raise ValueError("only a server of the same user can be started")
        if self.servers:
            return ""
        if FAULT == "no server":
            log("Failed to start : an error occurred while initializing the server")
            return ""
        program = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), SERVER)
        self.servers.append(subprocess.Popen([program], stdin=subprocess.DEVNULL))
        log(f"Starting new server {self.servers[0].pid} for user {uid}")
        return ""

    def do_get_server_list(self):
        return "\n".join(str(server.pid) for server in self.servers if server.poll() is None)

    def do_get_server_status(self, pid):
        return "ACTIVE" if pid in self.do_get_server_list().split() else "Server not found"

    def do_set_default_active_thread_percentage(self, percent):
        if not 0 < float(percent) <= 100:
            raise ValueError("percentage")
        self.percent = float(percent)
        log(f"set_default_active_thread_percentage {percent}")
        return f"{self.percent:.1f}"

    def do_get_default_active_thread_percentage(self):
        return f"{self.percent:.1f}"

    def do_set_default_device_pinned_mem_limit(self, device, limit):
        if int(device) >= len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")):
            raise ValueError("device")
        if limit[-1] not in "MG" or not limit[:-1].isdigit():
            raise ValueError("limit")
        self.limits[device] = limit
        log(f"set_default_device_pinned_mem_limit {device} {limit}")
        return ""

    def do_get_default_device_pinned_mem_limit(self, device):
        return self.limits.get(device, "")

    def do_quit(self, *_):
        if FAULT == "deaf":
            return ""
        for server in self.servers:
            server.terminate()
            server.wait()
        return None


def log(text):
    with open(os.path.join(LOG, "control.log"), "a") as file:
        file.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')} Control {os.getpid()}] {text}\n")


def start_daemon():
    if find_daemon():
        sys.exit("An instance of this daemon is already running")
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "GPU-").startswith(("GPU-", "MIG-")):
        sys.exit("devices are to be named by UUID")
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    with open(PID, "w") as file:
        file.write(str(os.getpid()))
    if FAULT == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(SOCKET + ".new")
    listening.listen()
    os.rename(SOCKET + ".new", SOCKET)
    log("Start")
    serve(listening, Daemon())


def serve(listening, daemon):
    while True:
        caller, _ = listening.accept()
        with caller, caller.makefile("rw") as lines:
            for line in lines:
                said = daemon.answer(line)
                if said is None:
                    os.unlink(SOCKET)
                    os.unlink(PID)
                    log("Exit")
                    return
                lines.write(said + "\n\0\n")
                lines.flush()


def find_daemon():
    try:
        with open(PID) as file:
            pid = int(file.read())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return 0
    return pid


def talk():
    if not os.path.exists(PIPE):
        sys.exit("Cannot find MPS control daemon process")
    for _ in range(500):  # the daemon is just coming up
        if os.path.exists(SOCKET) or not find_daemon():
            break
        time.sleep(0.01)
    caller = socket.socket(socket.AF_UNIX)
    try:
        caller.connect(SOCKET)
    except OSError:
        sys.exit("Cannot find MPS control daemon process")
    with caller, caller.makefile("rw") as lines:
        for command in sys.stdin:
            lines.write(command.rstrip() + "\n")
            lines.flush()
            for line in lines:
                if line == "\0\n":
                    break
                sys.stdout.write(line)


SERVER = "nvidia-cuda-mps-server"
if os.path.basename(sys.argv[0]) == SERVER:
    while True:
        time.sleep(3600)
elif sys.argv[1:] == ["-d"]:
    start_daemon()
elif not sys.argv[1:]:
    talk()
else:
    sys.exit(f"Unknown argument {sys.argv[1:]}")
