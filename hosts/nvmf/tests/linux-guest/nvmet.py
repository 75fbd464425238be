"""Guests, and the one whose kernel is the target: nvmet-tcp, its ports forwarded to loopback, with a shell into it."""

import contextlib
import pathlib
import shlex
import socket
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
NQN = "nqn.2024-01.test:linux-guest"


def boot(script, arguments, log, *options):
    """Starts run-guest with a job of jobs/ and its arguments."""
    log.write_text("")
    words = [HERE / "run-guest", "-l", log, *options, HERE / "jobs" / script]
    words += [f"{key}={value}" for key, value in arguments.items()]
    return subprocess.Popen([str(word) for word in words])


def follow(process, log):
    """Yields the lines of a growing console log until the process that writes it has ended."""
    with open(log, "r", errors="replace") as lines:
        rest, ended = "", False
        while not ended:
            ended = process.poll() is not None
            *whole, rest = (rest + lines.read()).split("\n")
            yield from (line.rstrip("\r") for line in whole)
            time.sleep(0.2)


class Failed(Exception):
    """A command in the guest gave a status other than 0, or the guest is gone."""


class Nvmet:
    """The kernel's target in a guest. Namespace 1 is memory (1 GiB), namespace 2 the disk image."""

    peer, nqn = "nvmet", NQN
    features = "6 7 11 15"
    port6 = 0

    def __init__(self, image, log, kernel="6.12", ports=1, cpus=1):
        """`ports` TCP ports, 4420 and up in the guest, are forwarded; the guest listens on the first of them."""
        self._image, self._log, self._kernel, self._cpus = image, log, kernel, cpus
        self.ports = free_ports(ports)
        self.port = self.ports[0]
        self._process = self._shell = self._answers = None

    def start(self):
        """Boots it, and waits until it listens and obeys."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            options = ["-t", 900, "-k", self._kernel, "-c", self._cpus, "-d", self._image]
            for number, port in enumerate(self.ports):
                options += ["-f", f"{port}:{4420 + number}"]
            arguments = {"NQN": NQN, "SHELL": server.getsockname()[1]}
            self._process = boot("nvmet.sh", arguments, self._log, *options)
            server.settimeout(1)
            while not self._shell:
                try:
                    self._shell, _ = server.accept()
                except TimeoutError:
                    if self._process.poll() is not None:
                        raise RuntimeError("nvmet did not come up") from None
        self._answers = self._shell.makefile("r", errors="replace")

    def run(self, command, seconds=60):
        """Runs a line of shell in the guest, where jobs/nvmet.sh has its functions; returns what it prints."""
        self._shell.settimeout(seconds)
        said = []
        try:
            self._shell.sendall(command.encode() + b"\n")
            for line in self._answers:
                if line.startswith("@@DONE "):
                    break
                said.append(line)
            else:
                raise Failed(f"the guest is gone: {command}")
        except OSError as error:
            raise Failed(f"the guest does not answer: {command}") from error
        if line != "@@DONE 0\n":
            raise Failed(f"in the guest: {command}: status {line.split()[1]}: {''.join(said).strip()}")
        return "".join(said)

    def write(self, path, value):
        """Writes an attribute below /sys/kernel/config/nvmet."""
        self.run(f"echo -n {shlex.quote(str(value))} >$nvmet/{path}")

    def forget_kernel_log(self):
        self.run("dmesg -c >/dev/null")

    def check_kernel_log(self, allowed):
        """Fails if the guest's kernel complained, unless it is alive no more because `kill` was called."""
        if self._shell:
            self.run(f"ALLOWED={shlex.quote(allowed)}; check_kernel_log")

    def hang_up(self):
        """Lets the guest end by itself, unless it was killed; returns the status of run-guest."""
        if not self._shell:
            return 0
        with contextlib.suppress(OSError):
            self._shell.shutdown(socket.SHUT_RDWR)
        return self._process.wait(timeout=60)

    def kill(self):
        """Ends the guest without warning, if it runs."""
        if self._process:
            self._process.terminate()
            self._process.wait()
        if self._shell:
            self._shell.close()
            self._shell = None

    stop = kill

    def usage(self):
        return 0, 0, 0


def free_ports(count):
    """Ports of loopback that nobody listened on a moment ago."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
