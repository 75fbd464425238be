"""Our host against a kernel's target: steps that run `nvmf` on this machine, with the target in a guest.

What `nvmf` writes is looked for by another way, in the guest or in the image; what it reads was put there by that way.
"""

import contextlib
import hashlib
import json
import os
import queue
import re
import subprocess
import threading
import time

from capture import Capture
from nvmet import NQN, Failed

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4 * KIB, 64 * KIB, 128 * KIB, 512 * KIB, MIB]
BOTH = ["--hdgst", "--ddgst"]
DIGESTS = {"no digests": [], "header digests": ["--hdgst"], "data digests": ["--ddgst"], "both digests": BOTH}
CAPSULES = {1: KIB, 2: 4 * KIB, 3: 64 * KIB}
"""What the capsules of some ports take, in bytes; those of port 0 take 16 KiB."""
DEAF, SHALLOW, NOBODY = 4, 5, 6
"""Ports that take no data in capsules, that have queues of 16 entries, and that nobody listens on."""

USAGE, CONNECTION, TARGET, DIFFERS = 2, 3, 4, 5
"""Exit statuses: the command line, no connection, what the target says, differing data."""

NO_COMMAND = "nvmet_tcp: failed cmd [0-9a-f]+ id [0-9]+ opcode [0-9]+|nvmet: got cmd [12] while CC.EN == 0 on qid"
"""What the kernel logs of commands that it refuses, and of those that were under way when the host went."""

STEPS = []


def step(heading, since="6.1"):
    """Makes a function a step of the job, for kernels from `since` on. Its argument is a [`Host`]."""

    def add(function):
        STEPS.append((heading, since, function))
        return function

    return add


class Host:
    """Our host, the kernel's target, and what may be asked of either."""

    def __init__(self, nvmf, target, image, logs, tell):
        self.target, self.image, self.logs, self._nvmf, self._tell = target, image, logs, nvmf, tell
        self.connects = nvmf.parent / "examples/connects"
        self._allowed = ""

    def run(self, kernel):
        """All steps; one that fails does not end the others."""
        for heading, since, function in STEPS:
            if [int(n) for n in since.split(".")] > [int(n) for n in kernel.split(".")]:
                continue
            self._allowed = ""
            try:
                self.target.forget_kernel_log()
                function(self)
                self.target.check_kernel_log(self._allowed)
                self._tell(f"PASS {heading}")
            except Exception as error:  # whatever it is, the step fails by it
                self._tell(f"reason: {error if isinstance(error, (Failed, AssertionError)) else repr(error)}")
                self._tell(f"FAIL {heading}")

    def allow(self, regex):
        """Lines of the guest's kernel log that belong to the current step."""
        self._allowed += f"|{regex}"

    def figure(self, text):
        self._tell(f"FIGURE {text}")

    def url(self, nsid=None, port=0, nqn=NQN):
        return f"nvme+tcp://127.0.0.1:{self.target.ports[port]}/{nqn}" + (f"?nsid={nsid}" if nsid else "")

    def start(self, *words):
        """Starts `nvmf` in the background."""
        command = [str(word) for word in (self._nvmf, *words)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def end(self, process, status, seconds):
        """Waits for what `start` began; it must end with this status. Returns its standard output and error."""
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise Failed(f"{shown(process)} did not end within {seconds} s: {err.decode()}") from None
        if process.returncode != status:
            raise Failed(f"{shown(process)}: status {process.returncode}: {err.decode()}")
        return out, err.decode()

    def nvmf(self, *words, seconds=60):
        """What `nvmf` prints; it must succeed and have nothing to complain about."""
        process = self.start(*words)
        out, err = self.end(process, 0, seconds)
        if err:
            raise Failed(f"{shown(process)}: {err}")
        return out

    def text(self, *words, **how):
        return self.nvmf(*words, **how).decode()

    def json(self, *words, **how):
        return json.loads(self.nvmf(*words, "--output", "json", **how))

    def refused(self, status, regex, *words, seconds=60):
        """`nvmf` must fail with this exit status, and say so in one line."""
        self.gives_up(status, regex, self.start(*words), seconds)

    def gives_up(self, status, regex, process, seconds):
        """What `start` began must fail so."""
        _, err = self.end(process, status, seconds)
        if not re.fullmatch(f"nvmf: .*(?:{regex}).*\n", err):
            raise Failed(f"{shown(process)}: no /{regex}/ in one line: {err}")

    def load(self, *options, nsid=1, seconds=60, rw="randrw"):
        """A bench in the background, well under way."""
        before = self.established()
        process = self.start("bench", self.url(nsid), "--rw", rw, "--iodepth", 16, "--runtime", seconds, *options)
        self.until(lambda: self.established() >= before + 2, "the bench did not connect")
        time.sleep(1)
        return process

    def established(self):
        """Connections that the guest's kernel has to hosts."""
        return int(self.target.run("grep -Ec '^ *[0-9]+: [0-9A-F]+:114[4-9A-F] [0-9A-F:]+ 01 ' /proc/net/tcp || :"))

    def busy(self, process):
        """Waits until what `start` began moves data of namespace 1."""

        def moved():
            words = self.target.run("cat /sys/block/nullb0/stat").split()
            return int(words[0]) + int(words[4])

        before = moved()
        self.until(lambda: moved() > before + 4 or process.poll() is not None, f"{shown(process)} does nothing", 30)

    def until(self, condition, complaint, seconds=20):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise Failed(f"{complaint} within {seconds} s")
            time.sleep(0.1)

    def stored(self, nsid, offset, length):
        """The checksum of what a namespace holds, by another way than the host's."""
        if nsid == 2:
            with open(self.image, "rb") as image:
                image.seek(offset)
                return hashlib.md5(image.read(length)).hexdigest()
        source = {1: "/dev/nullb0 iflag=direct", 3: "/tmp/file"}[nsid]
        count = f"bs=4096 skip={offset // 4096} count={length // 4096}"
        return self.target.run(f"dd if={source} {count} 2>/dev/null | md5sum").split()[0]

    def flushes(self):
        """Flushes that the guest's kernel has sent to namespace 2's disk. It flushes for FUA, too."""
        return int(self.target.run("cat /sys/block/vda/stat").split()[15])

    @contextlib.contextmanager
    def watched(self, *options):
        """A `connect --watch`, as a function that waits for its next event of a kind. It must end when it is asked to."""
        process = self.start("connect", self.url(), "--watch", "--output", "json", *options)
        lines = queue.Queue()
        threading.Thread(target=lambda: [lines.put(line) for line in process.stdout], daemon=True).start()

        def wait(kind):
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    told = json.loads(lines.get(timeout=1))
                    if told["event"] == kind:
                        return told
            raise Failed(f"{shown(process)}: no {kind}")

        try:
            yield wait
            process.terminate()
            if process.wait(20) != 0:
                raise Failed(f"{shown(process)}: status {process.returncode}")
        finally:
            process.kill()
            process.wait()

    @contextlib.contextmanager
    def exported(self, nsid, *options):
        """An NBD export of a namespace, by its URI. It must end when it is asked to."""
        path = self.logs / "nbd"
        process = self.start("export", self.url(nsid), "--nbd", f"unix:{path}", *options)
        try:
            self.until(path.exists, f"{shown(process)}: no socket")
            yield f"nbd+unix:///?socket={path}"
            process.terminate()
            self.end(process, 0, 20)
        finally:
            process.kill()
            process.wait()
            path.unlink(missing_ok=True)

    def same(self, nsid, start, data):
        """Whether a namespace holds the data from a block on, by either way."""
        block = BLOCK[nsid]
        if self.stored(nsid, start * block, len(data)) != hashlib.md5(data).hexdigest():
            raise Failed(f"namespace {nsid} does not hold the {len(data)} bytes that were written")

    def write(self, nsid, start, data, *options, port=0):
        """Writes by our host, and looks at it by the other way."""
        path = self.logs / "data"
        path.write_bytes(data)
        self.nvmf("write", self.url(nsid, port), "--start-block", start, "--data", path, *options)
        self.same(nsid, start, data)

    def read(self, nsid, start, length, *options, port=0):
        return self.nvmf("read", self.url(nsid, port), "--start-block", start, "--data-size", length, *options)


BLOCK = {1: 4096, 2: 512, 3: 4096}
"""Bytes of a block of each namespace."""


def qemu(program, *words, seconds=60):
    """Runs qemu-img or qemu-io, which must succeed; returns what it prints."""
    command = [program, *(str(word) for word in words)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
    if done.returncode != 0 or "failed" in done.stdout:
        raise Failed(f"{' '.join(command)}: status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def shown(process):
    return " ".join(process.args[1:])


@step("setting up")
def set_up(host):
    host.target.run("dd if=/dev/urandom of=/tmp/file bs=1M count=16 2>/dev/null && export_device 3 /tmp/file 1")
    for port, limit in {**CAPSULES, DEAF: 0}.items():
        host.target.run(f"listen {port + 1} {4420 + port} {limit}")


@step("discover")
def discover(host):
    base = f"nvme+tcp://127.0.0.1:{host.target.port}"
    assert f"nvme+tcp://10.0.2.15:4420/{NQN}  nvme subsystem\n" in host.text("discover", base)
    entries = host.json("discover", base)["records"]
    [entry] = [entry for entry in entries if entry["subnqn"] == NQN]
    expected = {"trtype": "tcp", "adrfam": "ipv4", "portid": 1, "traddr": "10.0.2.15", "trsvcid": "4420"}
    assert {key: entry[key] for key in expected} == expected, entry
    host.text("discover", base, *BOTH)


@step("referrals, that lead round in a circle")
def referrals(host):
    here, there = host.target.port, host.target.ports[1]
    for port, to in (1, there), (2, here):
        referral = f"ports/{port}/referrals/next"
        host.target.run(f"mkdir $nvmet/{referral}")
        values = {"trtype": "tcp", "adrfam": "ipv4", "traddr": "127.0.0.1", "trsvcid": to}
        for attribute, value in values.items():
            host.target.write(f"{referral}/addr_{attribute}", value)
        host.target.write(f"{referral}/enable", 1)
    try:
        entries = host.json("discover", f"nvme+tcp://127.0.0.1:{here}")["records"]
        found = [(entry["portid"], f":{there}" in entry["from"]) for entry in entries if entry["subnqn"] == NQN]
        assert found == [(1, False), (2, True)], entries
    finally:
        for port in 1, 2:
            host.target.run(f"echo 0 >$nvmet/ports/{port}/referrals/next/enable; rmdir $nvmet/ports/{port}/referrals/next")


@step("id-ctrl, logs and features")
def controller(host):
    found = host.json("id-ctrl", host.url())
    serial = host.target.run("cat $subsystem/attr_serial").strip()
    assert (found["subnqn"], found["sn"].strip()) == (NQN, serial), found
    # 64 bytes of command and 16 KiB of data, in units of 16 bytes.
    assert (found["ioccsz"], found["mdts"]) == ((64 + 16 * KIB) // 16, 0), found
    assert f"ioccsz: {found['ioccsz']}" in host.text("id-ctrl", host.url())
    assert host.json("smart-log", host.url())["critical_warning"] == 0
    for log in 1, 3, 4, 5, 0xC:  # errors, firmware, changed namespaces, effects, ANA
        host.json("get-log", host.url(), "--log-id", log)
    host.refused(TARGET, "Invalid Log Page|Invalid Field", "get-log", host.url(), "--log-id", 0x7E, "--log-len", 512)
    assert host.json("get-feature", host.url(), "--feature-id", 0xF)["value"] == 5000, "the keep alive timeout is not ours"
    host.refused(TARGET, "Invalid Field", "get-feature", host.url(), "--feature-id", 0x7E)


@step("list, and id-ns of several namespaces")
def namespaces(host):
    sizes = {1: 1 << 30, 2: host.image.stat().st_size, 3: 16 * MIB}
    listed = {device["NameSpace"]: device for device in host.json("list", host.url())["Devices"]}
    assert {nsid: device["PhysicalSize"] for nsid, device in listed.items()} == sizes, listed
    for nsid, size in sizes.items():
        found = host.json("id-ns", host.url(nsid))
        assert found["nsze"] == size // BLOCK[nsid], found
        assert listed[nsid]["SectorSize"] == BLOCK[nsid], listed
    host.refused(USAGE, r"which namespace\? Add \?nsid=N to the URL; there are 1, 2, 3", "id-ns", host.url())
    host.refused(TARGET, "no namespace 4; it has 1, 2, 3", "read", host.url(4))


def data_step(name, options):
    @step(f"data from 4 KiB to 1 MiB, {name}")
    def data(host):
        for nsid in 1, 2, 3:
            for start, size in enumerate(SIZES, 3):
                sent = os.urandom(size)
                host.write(nsid, start, sent, *options)
                assert host.read(nsid, start, size, *options) == sent, f"{size} bytes read back differently"
                host.nvmf("compare", host.url(nsid), "--start-block", start, "--data", host.logs / "data", *options)
        # What was put there by the other way.
        put = os.urandom(5 * MIB)
        with open(host.image, "r+b") as image:
            image.seek(64 * MIB)
            image.write(put)
        assert host.read(2, 64 * MIB // 512, len(put), *options) == put, "what the image holds reads differently"


for _name, _options in DIGESTS.items():
    data_step(_name, _options)


@step("compare, of which nvmet knows nothing")
def compare(host):
    data = os.urandom(8 * KIB)
    host.write(2, 5, data)
    (host.logs / "data").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    host.refused(DIFFERS, "differ at byte 8191", "compare", host.url(2), "--start-block", 5, "--data", host.logs / "data")


def capsule_step(port, limit):
    @step(f"capsules that take {limit} bytes of data")
    def capsule(host):
        assert host.json("id-ctrl", host.url(port=port))["ioccsz"] == (64 + limit) // 16, "the target does not as it is told"
        for options in [], BOTH:
            for size in 512, KIB, 4 * KIB, 4 * KIB + 512, 16 * KIB, 64 * KIB, 64 * KIB + 512:
                sent = os.urandom(size)
                host.write(2, 7, sent, *options, port=port)
                assert host.read(2, 7, size, *options, port=port) == sent, f"{size} bytes read back differently"


for _port, _limit in CAPSULES.items():
    capsule_step(_port, _limit)


@step("a target whose capsules take not even Connect's data")
def deaf(host):
    host.allow("nvmet_tcp: queue 0: failed to map data|nvmet_tcp: unexpected pdu type")
    host.refused(TARGET, "the controller refused Connect: SGL Offset Invalid", "read", host.url(1, DEAF))


@step("queues of 16 entries", since="6.12")
def shallow(host):
    host.target.run(f"listen {SHALLOW + 1} {4420 + SHALLOW} && rm $nvmet/ports/{SHALLOW + 1}/subsystems/{NQN}")
    host.target.write(f"ports/{SHALLOW + 1}/param_max_queue_size", 16)
    host.target.run(f"ln -s $subsystem $nvmet/ports/{SHALLOW + 1}/subsystems/")
    host.refused(USAGE, "--iodepth .* 15[: ]", "bench", host.url(1, SHALLOW), "--iodepth", 16)
    host.nvmf("bench", host.url(1, SHALLOW), "--rw", "randrw", "--iodepth", 15, "--runtime", 1)
    sent = os.urandom(20 * MIB)
    host.write(2, 9, sent, port=SHALLOW)
    assert host.read(2, 9, len(sent), port=SHALLOW) == sent, "read back differently"


def load_step(queues, name, options):
    @step(f"verified load on {queues} queues, {name}", since="6.12")
    def load(host):
        shapes = ("randrw", "4k", 16, 4), ("randrw", "512", 8, 1), ("randwrite", "64k", 8, 16), ("write", "1M", 2, 32)
        for rw, bs, depth, size in shapes:
            nsid = 2 if bs == "512" else 1
            shape = ["--rw", rw, "--bs", bs, "--iodepth", depth, "--numjobs", queues, "--size", size * MIB]
            told = host.json("bench", host.url(nsid), *shape, "--verify", *options)
            [job] = told["jobs"]
            assert job["error"] == 0 and job["read"]["io_bytes"] + job["write"]["io_bytes"] >= size * MIB, told
            if rw == "write":
                host.json("bench", host.url(nsid), "--rw", "read", *shape[2:], "--verify", *options)


for _queues, _name in (1, "no digests"), (4, "both digests"):
    load_step(_queues, _name, DIGESTS[_name])


@step("speed", since="6.12")
def speed(host):
    for rw, bs, depth in ("randrw", "4k", 1), ("randrw", "4k", 128), ("write", "1M", 8), ("read", "1M", 8):
        [job] = host.json("bench", host.url(1), "--rw", rw, "--bs", bs, "--iodepth", depth, "--runtime", 1)["jobs"]
        host.figure(f"{rw} {bs} depth {depth}: {job['read']['iops'] + job['write']['iops']:.0f} IOPS")


# nvmet says 4 MiB, and refuses longer commands, although it says that MDTS is 0: no limit.
@step("commands as long as MAXH2CDATA, and longer")
def maxh2cdata(host):
    host.allow("nvmet_tcp: queue [0-9]+: failed to map data")
    for rw in "write", "read":
        for options in [], ["--ddgst"]:
            host.nvmf("bench", host.url(1), "--rw", rw, "--bs", "4M", "--iodepth", 2, "--runtime", 0.2, *options)
            longer = ["--rw", rw, "--bs", "4100k", "--runtime", 1, *options]
            host.refused(TARGET, "Data SGL Length Invalid", "bench", host.url(1), *longer)


@step("what tshark reads", since="6.12")
def tshark(host):
    host.allow("nvmet_tcp: failed to allocate queue, error -107")  # a connection by which a capture ends
    capture = Capture(host.logs / "host.pcapng", host.target.port, ["--hdr-digest", "--disable-sqflow"])
    try:
        for rw, bs in ("randread", "4k"), ("randwrite", "32k"):
            host.nvmf("bench", host.url(1), "--rw", rw, "--bs", bs, "--iodepth", 4, "--runtime", 0.3, *BOTH)
    finally:
        capture.end()
    for verdict in capture.verdicts():
        assert verdict.startswith("PASS "), verdict


@step("flush, discard, write zeroes; verify, of which nvmet knows nothing")
def commands(host):
    host.allow(NO_COMMAND)
    before = host.flushes()
    host.nvmf("flush", host.url(2))
    assert host.flushes() == before + 1, "no flush came"
    for nsid in 1, 2:
        data = os.urandom(16 * BLOCK[nsid])
        host.write(nsid, 0, data)
        host.nvmf("write-zeroes", host.url(nsid), "--start-block", 3, "--block-count", 5)
        block = BLOCK[nsid]
        host.same(nsid, 0, data[: 3 * block] + bytes(5 * block) + data[8 * block :])
    stored = int(host.target.run("stat -c %b /tmp/file"))
    host.nvmf("discard", host.url(3), "--start-block", "0,1024", "--block-count", "256,256")
    assert int(host.target.run("stat -c %b /tmp/file")) <= stored - 2 * MIB // 512, "the file has no holes"
    host.refused(TARGET, "does not offer Verify", "verify", host.url(1), "--block-count", 1)
    host.refused(TARGET, "Invalid Command Opcode", "io-passthru", host.url(2), "--opcode", 0x7E)


@step("flush and FUA")
def flush(host):
    with host.exported(2) as uri:
        # qemu-io flushes when it ends.
        for command, expected in ("write 0 64k", 1), ("flush", 2), ("write -f 0 64k", 2):
            before = host.flushes()
            qemu("qemu-io", "-f", "raw", "-t", "writeback", "-c", command, uri)
            assert host.flushes() - before == expected, f"{command}: {host.flushes() - before} flushes"


@step("zeroes and holes")
def zeroes(host):
    for nsid in 1, 2:
        data = os.urandom(MIB)
        host.write(nsid, 0, data)
        with host.exported(nsid) as uri:
            qemu("qemu-io", "-f", "raw", "-c", "write -z 64k 128k", "-c", "write -z -u 256k 128k", uri)
        zeroed = bytearray(data)
        zeroed[64 * KIB : 192 * KIB] = zeroed[256 * KIB : 384 * KIB] = bytes(128 * KIB)
        host.same(nsid, 0, bytes(zeroed))
    stored = int(host.target.run("stat -c %b /tmp/file"))
    with host.exported(3) as uri:
        qemu("qemu-io", "-f", "raw", "-d", "unmap", "-c", "discard 8M 4M", uri)
    assert int(host.target.run("stat -c %b /tmp/file")) <= stored - 4 * MIB // 512, "the file has no hole"


@step("1000 connects", since="6.12")
def connects(host):
    def held():
        host.until(lambda: host.established() == 0, "connections are left over")
        host.target.run("echo 3 >/proc/sys/vm/drop_caches")
        return int(host.target.run("awk '/^MemAvailable/ { print $2 }' /proc/meminfo"))

    def rounds(count):
        command = [host.connects, host.url(1), str(count)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=180).stdout)

    rounds(10)
    available = held()
    told = rounds(1000)
    host.figure(f"1000 connects: {told['seconds']:.0f} s")
    before, after = told["before"], told["after"]
    assert (after["files"], after["threads"]) == (before["files"], before["threads"]), told
    assert after["resident_kib"] <= before["resident_kib"] + KIB, told
    # A queue of nvmet's has hundreds of KiB.
    assert held() >= available - 16 * KIB, f"the kernel holds {available - held()} KiB more"


@step("an NQN that is not there")
def wrong_nqn(host):
    host.allow("nvmet: connect request for invalid subsystem")
    said = rf"is the NQN right\? The target offers: {re.escape(NQN)}"
    host.refused(TARGET, said, "read", host.url(1, nqn=NQN + "x"))


@step("a host that is not allowed")
def refused_host(host):
    host.allow("nvmet: connect by host .* for subsystem .* not allowed")
    host.target.write(f"subsystems/{NQN}/attr_allow_any_host", 0)
    stranger = "nqn.2024-01.test:stranger"
    try:
        said = f"the target does not let this host in, whose name is {stranger}"
        host.refused(TARGET, said, "read", host.url(1), "--hostnqn", stranger)
        host.target.run(f"mkdir $nvmet/hosts/{stranger} && ln -s $nvmet/hosts/{stranger} $subsystem/allowed_hosts/")
        host.read(1, 0, 4096, "--hostnqn", stranger)
        host.target.run(f"rm $subsystem/allowed_hosts/{stranger} && rmdir $nvmet/hosts/{stranger}")
    finally:
        host.target.write(f"subsystems/{NQN}/attr_allow_any_host", 1)


@step("a port behind which nobody listens")
def nobody(host):
    said = r"did not answer ICReq: is it an NVMe/TCP target\?"
    host.refused(CONNECTION, said, "discover", f"nvme+tcp://127.0.0.1:{host.target.ports[NOBODY]}")


@step("a path that ANA calls inaccessible")
def ana(host):
    host.allow(NO_COMMAND)
    try:
        host.target.write("ports/1/ana_groups/1/ana_state", "inaccessible")
        host.refused(TARGET, "Read failed: Asymmetric Access Inaccessible", "read", host.url(1), "--data-size", "4k")
        host.target.write("ports/1/ana_groups/1/ana_state", "non-optimized")
        host.read(1, 0, 4096)
    finally:
        host.target.write("ports/1/ana_groups/1/ana_state", "optimized")


@step("a namespace that goes away under load")
def namespace_gone(host):
    host.allow(NO_COMMAND)
    process = host.load()
    host.target.write(f"subsystems/{NQN}/namespaces/1/enable", 0)
    try:
        # Linux knows a namespace that is disabled from one that is not there.
        host.gives_up(TARGET, "(Read|Write) failed: (Internal Path Error|Invalid Namespace or Format)", process, 20)
        host.refused(TARGET, "no namespace 1; it has 2, 3", "read", host.url(1))
    finally:
        host.target.write(f"subsystems/{NQN}/namespaces/1/enable", 1)
    host.read(1, 0, 4096)


@step("a subsystem that is taken from its port under load")
def subsystem_gone(host):
    process = host.load()
    # The port has no other, so that it goes too.
    host.target.run(f"rm $nvmet/ports/1/subsystems/{NQN}")
    try:
        host.gives_up(CONNECTION, "closed the connection|connection lost", process, 20)
        host.refused(CONNECTION, "did not answer ICReq", "read", host.url(1))
    finally:
        host.target.run("ln -s $subsystem $nvmet/ports/1/subsystems/")
    host.read(1, 0, 4096)




@step("what connect --watch sees")
def watch(host):
    def namespaces():
        return [namespace["nsid"] for namespace in wait("namespaces")["namespaces"]]

    with host.watched("--reconnect-delay", 1) as wait:
        assert wait("connected")["subnqn"] == NQN
        assert namespaces() == [1, 2, 3]
        for enable, expected in (0, [1, 2]), (1, [1, 2, 3]), (0, [1, 2]), (1, [1, 2, 3]):
            host.target.write(f"subsystems/{NQN}/namespaces/3/enable", enable)
            assert namespaces() == expected
        for state, expected in ("non-optimized", "Non-Optimized"), ("optimized", "Optimized"):
            host.target.write("ports/1/ana_groups/1/ana_state", state)
            told = wait("ana")
            assert (told["group"], told["state"]) == (1, expected), told
        removed(host)
        wait("lost")
        wait("reconnected")


def outlives(heading, disturb, since="6.1"):
    """A step in which an export and a copy, under load, outlive what `disturb` does to the target."""

    @step(heading, since)
    def outlive(host):
        host.allow(f"{NO_COMMAND}|nvmet: ctrl [0-9]+ (keep-alive timer .* expired|fatal error occurred)")
        # Connections that were given up before they were answered.
        host.allow("nvmet_tcp: (failed to allocate queue, error -107|queue [0-9]+: received icreq pdu in state 3)")
        written, copied = host.logs / "written", host.logs / "copied"
        written.write_bytes(os.urandom(32 * MIB))
        options = ["--reconnect-delay", 1, "--keep-alive-tmo", 4, "--nr-io-queues", 2]
        with host.exported(2, *options) as uri:
            # For 8 s at least, whatever the machine does.
            convert = ["qemu-img", "convert", "-n", "-r", "4M", "-f", "raw", "-O", "raw", written, uri]
            writing = subprocess.Popen(convert, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            reading = host.start("copy", host.url(1), copied, "--count", "24M", "--verify", *options)
            try:
                host.busy(reading)
                disturb(host)
                said = writing.communicate(timeout=90)[1]
                assert writing.returncode == 0, f"qemu-img: {said}"
                host.end(reading, 0, 60)
            finally:
                for process in writing, reading:
                    process.kill()
                    process.wait()
        came = int(host.target.run("dmesg | grep -c 'nvmet: creating nvm controller'"))
        assert came >= 4, f"both were to connect twice, but {came} controllers came to be"
        host.same(2, 0, written.read_bytes())
        host.same(1, 0, copied.read_bytes())


def resets(host):
    # Linux 6.12 ends all controllers when the most I/O queues that it grants change.
    for _ in range(5):
        host.target.run("echo 64 >$subsystem/attr_qid_max && echo 128 >$subsystem/attr_qid_max")
        host.until(lambda: host.established() > 0, "nobody comes back")


def removed(host):
    host.target.run(f"rm $nvmet/ports/1/subsystems/{NQN}; sleep 3; ln -s $subsystem $nvmet/ports/1/subsystems/")


def pulled(host):
    host.target.run("ip link set eth0 down; sleep 9; ip link set eth0 up; ip route add default via 10.0.2.2")


outlives("resets under load", resets, since="6.12")
outlives("a target that is removed under load and comes back", removed)
outlives("a cable that is pulled under load, and put back", pulled, since="6.12")


@step("a cable that is pulled for good", since="6.12")
def dead(host):
    host.allow("nvmet: ctrl [0-9]+ (keep-alive timer .* expired|fatal error occurred)")
    host.allow("nvmet_tcp: (failed to allocate queue, error -107|queue [0-9]+: received icreq pdu in state 3)")
    options = ["--keep-alive-tmo", 2, "--reconnect-delay", 1, "--ctrl-loss-tmo", 1]
    copy = host.start("copy", "/dev/zero", host.url(1), "--count", "1G", *options)
    host.busy(copy)
    # It notices by keep alive, and gives up after one attempt to connect, which may take 5 s.
    host.target.run("ip link set eth0 down; sleep 15; ip link set eth0 up; ip route add default via 10.0.2.2")
    _, err = host.end(copy, CONNECTION, 20)
    assert re.search("^nvmf: .* is not complete, .* did not answer ICReq", err, re.MULTILINE), err
    host.read(1, 0, 4096)


@step("a guest that is killed under load")
def killed(host):
    process = host.load()
    host.target.kill()
    host.gives_up(CONNECTION, "closed the connection|connection lost", process, 20)
    host.refused(CONNECTION, "nothing listens", "read", host.url(1))
