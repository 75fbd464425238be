"""A capture of one NVMe/TCP session on loopback, and what tshark, an independent reader, finds in it."""

import collections
import re
import signal
import socket
import struct
import subprocess
import time

# NVMe/TCP 1.1, section 3.6.2: type, name, header length in bytes; and how many a captured session must show at least.
# The two TermReqs (2 and 3) are no part of a healthy session.
PDUS = {
    0: ("ICReq", 128, 4),
    1: ("ICResp", 128, 4),
    4: ("CapsuleCmd", 72, 150),
    5: ("CapsuleResp", 24, 70),
    6: ("H2CData", 24, 32),
    7: ("C2HData", 24, 70),
    9: ("R2T", 24, 32),
}
FIELDS = ["type", "hlen", "plen", "hdgst.status", "ddgst.status", "flags.pdu.data_success"]
GOOD = 1  # of tshark's checksum states: 0 bad, 1 good, 2 unverified

# Damage that each check must notice: which PDU (its first 8 bytes, digests on), which byte to change, the bits of it, the
# word of the verdict.
DAMAGE = {
    "a header that does not match its digest": (rb"\x09\x01\x18\x00\x1c\x00\x00\x00", 12, 0x10, "header digest"),
    "data that does not match its digest": (rb"\x07.\x18\x1c\x20\x10\x00\x00", 128, 0x10, "data digest"),
    "a PDU that is too short": (rb"\x04.\x48\x00\x4c\x00\x00\x00", 4, 0x4C ^ 0x10, "malformed"),
}


class Capture:
    """Captures a TCP port of the loopback interface from construction until `end`."""

    def __init__(self, path, port, options):
        self._path, self._port = path, port
        self._digests = "--hdr-digest" in options
        self._flow_control = "--disable-sqflow" not in options
        self._process = subprocess.Popen(
            ["dumpcap", "-q", "-B", "64", "-i", "lo", "-f", f"tcp port {port}", "-w", path],
            stderr=subprocess.PIPE,
            text=True,
        )
        if not any(line.startswith("File: ") for line in self._process.stderr):
            raise RuntimeError("dumpcap did not start")

    def end(self):
        """Ends the capture, of which nothing may have been lost."""
        # dumpcap may be behind, and does not tell of what it has not read when it ends: it must see one connection more.
        with socket.create_connection(("127.0.0.1", self._port)) as last:
            mark = struct.pack(">HH", last.getsockname()[1], self._port)
        deadline = time.monotonic() + 60
        while mark not in self._path.read_bytes():
            if time.monotonic() > deadline:
                raise RuntimeError("dumpcap does not come to an end")
            time.sleep(0.2)
        self._process.send_signal(signal.SIGINT)
        told = self._process.communicate(timeout=10)[1]
        if "/0 (" not in told:
            raise RuntimeError(f"dumpcap lost packets: {told}")

    def verdicts(self):
        """Yields one PASS or FAIL line per check."""
        name = self._path.stem
        faults, summary = self._faults(self._path)
        yield f"FAIL tshark reads {name}: {'; '.join(faults)}" if faults else f"PASS tshark reads {name}: {summary}"
        if not self._digests:
            return
        for what, (pattern, offset, bits, word) in DAMAGE.items():
            found = any(word in fault for fault in self._faults(self._damaged(pattern, offset, bits))[0])
            yield f"{'PASS' if found else 'FAIL'} tshark notices in {name} {what}"

    def _damaged(self, pattern, offset, bits):
        """A copy of the capture with one byte changed in the second PDU that matches the pattern."""
        octets = bytearray(self._path.read_bytes())
        places = [match.start() for match in re.finditer(pattern, octets, re.DOTALL)]
        if len(places) > 1:
            octets[places[1] + offset] ^= bits
        path = self._path.with_suffix(".damaged")
        path.write_bytes(octets)
        return path

    def _faults(self, path):
        """What is wrong with a capture, and a summary of what is in it."""
        columns = ["tcp.stream", "tcp.srcport", "tcp.seq", "tcp.len", "_ws.malformed", *(f"nvme-tcp.{f}" for f in FIELDS)]
        command = ["tshark", "-r", path, "-d", f"tcp.port=={self._port},nvme-tcp", "-T", "fields"]
        command += ["-o", "tcp.reassemble_out_of_order:TRUE"]
        command += ["-o", "nvme-tcp.check_hdgst:TRUE", "-o", "nvme-tcp.check_ddgst:TRUE"]
        for column in columns:
            command += ["-e", column]
        rows = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        malformed, sent = 0, collections.Counter()  # sent: bytes of each direction of each connection
        fields = {field: [] for field in FIELDS}
        for row in rows:
            stream, port, sequence, length, bad, *values = row.split("\t")
            malformed += bool(bad)
            if int(length):
                sent[stream, port] = max(sent[stream, port], int(sequence) + int(length) - 1)
            for field, value in zip(FIELDS, values):
                fields[field] += [int(word, 0) for word in value.split(",") if word]

        faults = []
        count = collections.Counter(fields["type"])
        if malformed:
            faults.append(f"{malformed} malformed")
        for kind, number in count.items():
            if kind not in PDUS:
                faults.append(f"{number} PDUs of type {kind}")
        for kind, (name, _, least) in PDUS.items():
            if count[kind] < least:
                faults.append(f"only {count[kind]} {name}")
        lengths = [PDUS[kind][1] for kind in fields["type"] if kind in PDUS]
        if lengths != fields["hlen"]:
            faults.append("header lengths that are not those of the types")
        if sum(fields["plen"]) != sent.total():
            faults.append(f"{sent.total()} bytes on the wire, {sum(fields['plen'])} in PDUs")
        for field, name in [("hdgst.status", "header digest"), ("ddgst.status", "data digest")]:
            bad = sum(status != GOOD for status in fields[field])
            if bad or bool(fields[field]) != self._digests:
                faults.append(f"{name}: {bad} of {len(fields[field])} bad")
        if self._flow_control and any(fields["flags.pdu.data_success"]):
            faults.append("SUCCESS although SQ flow control is on")
        summary = ", ".join(f"{count[kind]} {name}" for kind, (name, _, _) in PDUS.items())
        digests = f"; {len(fields['hdgst.status'])} header and {len(fields['ddgst.status'])} data digests good"
        return faults, summary + (digests if self._digests else "")
