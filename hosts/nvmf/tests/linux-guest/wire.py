"""A capture of NVMe/RDMA between two guests, and what tshark, an independent reader, finds in it."""

import collections
import struct
import subprocess

OURS, LINUX = "192.168.77.1", "192.168.77.2"
SESSIONS = [("the kernel's host and our target", LINUX, OURS), ("our host and the kernel's target", OURS, LINUX)]

# Attributes of the connection manager's messages, and opcodes of reliable connections (InfiniBand, 16.7.2 and 9.2.1).
CM_REQ, CM_REP = 0x10, 0x13
SENDS, WRITES, READ = {0, 4, 23}, {6, 10}, 12  # the first packet of each message
CONNECT = 1  # a Fabrics command's type
DATAGRAM = 100  # the opcode of a SEND without connection
KEYED, IN_CAPSULE = 4, 0  # types of data descriptors
ABORT_REQUESTED = 7  # what Asynchronous Event Requests end with

# Each row that tshark gives is a packet. It fills in fields of "cm.req" in a second pass only.
COLUMNS = {
    "source": "ip.src",
    "malformed": "_ws.malformed",
    "attribute": "infiniband.mad.attributeid",
    "recfmt": "nvme-rdma.cm.req.recfmt",
    "qid": "nvme-rdma.cm.req.qid",
    "hrqsize": "nvme-rdma.cm.req.hrqsize",
    "hsqsize": "nvme-rdma.cm.req.hsqsize",
    "rep_recfmt": "nvme-rdma.cm.rsp.recfmt",
    "crqsize": "nvme-rdma.cm.rsp.crqsize",
    "opcode": "infiniband.bth.opcode",
    "qp": "infiniband.bth.destqp",
    "psn": "infiniband.bth.psn",
    "dma_length": "infiniband.reth.dmalen",
    "fabrics": "nvme.fabrics.cmd.fctype",
    "connect_qid": "nvme.fabrics.cmd.connect.qid",
    "connect_sqsize": "nvme.fabrics.cmd.connect.sqsize",
    "command": "nvme.cmd.opc",
    "sgl_type": "nvme.cmd.sgl.type",
    "sgl_subtype": "nvme.cmd.sgl.subtype",
    "sgl_length": "nvme.cmd.sgl1.len",
    "status": "nvme.cqe.status.sc",
    "status_type": "nvme.cqe.status.sct",
}
Packet = collections.namedtuple("Packet", COLUMNS)

# Damage that must be noticed: what it is, the packet in question (its UDP payload), which byte of it to change, the bits
# of it, a word of the verdict. The connection manager's private data is 36 bytes behind the addresses of its IP header.
CM_PRIVATE_DATA = 12 + 8 + 24 + 140 + 36
DAMAGE = {
    "private data of another format": (lambda udp: udp[0] == DATAGRAM and udp[36:38] == b"\0\x10", CM_PRIVATE_DATA, 1, "RECFMT"),
    "a queue of another size": (lambda udp: udp[0] == DATAGRAM and udp[36:38] == b"\0\x10", CM_PRIVATE_DATA + 6, 4, "HSQSIZE"),
    "a command that asks for less": (lambda udp: udp[0] == 4 and udp[12] == 2, 12 + 33, 0x10, "bytes"),
    "a response with an error": (lambda udp: udp[0] in (4, 23) and len(udp) in (32, 36), -6, 2, "status"),
}


class Wire:
    """A capture that is complete."""

    def __init__(self, path):
        self._path = path

    def verdicts(self):
        """Yields one PASS or FAIL line per check."""
        sound = judge_all(self._path)
        for name, (faults, summary) in sound.items():
            yield f"FAIL tshark reads {name}: {'; '.join(faults)}" if faults else f"PASS tshark reads {name}: {summary}"
        for what, (find, offset, bits, word) in DAMAGE.items():
            damaged = judge_all(self._damaged(find, offset, bits))
            found = {word in fault for faults, _ in damaged.values() for fault in faults}
            before = {word in fault for faults, _ in sound.values() for fault in faults}
            yield f"{'PASS' if True in found - before else 'FAIL'} tshark notices {what}"

    def _damaged(self, find, offset, bits):
        """A copy of the capture with one byte changed in the first packet that is found."""
        octets = bytearray(self._path.read_bytes())
        begin = 24  # behind the file's header
        while begin < len(octets):
            length = struct.unpack_from("<I", octets, begin + 8)[0]
            frame = begin + 16
            udp = frame + 14 + 20 + 8
            begin = frame + length
            if octets[frame + 12 : frame + 14] == b"\x08\0" and octets[frame + 23] == 17 and find(octets[udp:begin]):
                octets[(udp if offset >= 0 else begin) + offset] ^= bits
                break
        path = self._path.with_suffix(".damaged")
        path.write_bytes(octets)
        return path


def judge_all(path):
    """What is wrong with a capture, by session, and summaries."""
    packets = read(path)
    # One session follows the other.
    first, second = SESSIONS
    cut = next((i for i, p in enumerate(packets) if p.source == second[1] and p.attribute == CM_REQ), len(packets))
    return {first[0]: judge(packets[:cut], *first[1:]), second[0]: judge(packets[cut:], *second[1:])}


def read(path):
    """Each packet of a capture as tshark sees it, once."""
    command = ["tshark", "-2", "-r", path, "-T", "fields", "-E", "occurrence=f"]
    for field in COLUMNS.values():
        command += ["-e", field]
    rows = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    packets = [Packet(*(number(value) for value in row.split("\t"))) for row in rows]
    # What was not acknowledged in time is sent again. Queue pairs of datagrams number nothing.
    sent = {}
    for index, packet in enumerate(packets):
        numbered = packet.opcode is not None and packet.opcode < DATAGRAM
        sent.setdefault((packet.source, packet.qp, packet.psn, packet.opcode) if numbered else index, packet)
    return list(sent.values())


def number(value):
    """A field as a number, if it is one; None where the packet has none."""
    try:
        return int(value, 0) if value else None
    except ValueError:
        return value


def judge(packets, host, target):
    """What is wrong with what passed between a host and a target, and a summary of it."""
    asked = [p for p in packets if p.source == host and p.attribute == CM_REQ]
    told = [p for p in packets if p.source == target and p.attribute == CM_REP]
    sent = [p for p in packets if p.source == host and p.opcode in SENDS]
    answered = [p for p in packets if p.source == target and p.opcode in SENDS]
    commands = [p for p in sent if p.command is not None or p.fabrics is not None]
    reads = [p for p in packets if p.source == target and p.opcode == READ]
    writes = [p for p in packets if p.source == target and p.opcode in WRITES]
    connects = [p for p in commands if p.fabrics == CONNECT]
    events = sum(p.status == ABORT_REQUESTED for p in answered)

    faults = []
    if malformed := sum(p.malformed is not None for p in packets if p.source in (host, target)):
        faults.append(f"{malformed} malformed")
    if any(p.recfmt != 0 for p in asked) or any(p.rep_recfmt != 0 for p in told):
        faults.append("private data without RECFMT 0")
    if {p.qid for p in asked} != {0, 1}:
        faults.append(f"QIDs {sorted(p.qid for p in asked)}")
    if any(p.hrqsize != p.hsqsize + 1 for p in asked) or [p.crqsize for p in told] != [p.hsqsize + 1 for p in asked]:
        faults.append("HRQSIZE or CRQSIZE is not that of HSQSIZE")
    if [(p.qid, p.hsqsize) for p in asked] != [(p.connect_qid, p.connect_sqsize) for p in connects]:
        faults.append("Connect says otherwise than HSQSIZE and QID")
    # tshark does not put together capsules of several packets, and so knows no response to them.
    unknown = sum(p.status is None for p in answered)
    if unknown != len(sent) - len(commands):
        faults.append(f"{len(sent) - len(commands)} capsules in several packets, {unknown} SENDs of the target's that are no responses")
    if errors := sum(p.status not in (0, None) for p in answered) - events:
        faults.append(f"{errors} responses with an error status")
    # Asynchronous Event Requests may be left over.
    if not len(sent) - len(asked) <= len(answered) <= len(sent):
        faults.append(f"{len(sent)} commands, {len(answered)} responses")
    for way, name, moves in [(1, "READ", reads), (2, "WRITE", writes)]:
        keyed = sum(p.sgl_length for p in commands if p.sgl_type == KEYED and direction(p) == way)
        moved = sum(p.dma_length for p in moves)
        if keyed != moved:
            faults.append(f"{keyed} bytes asked for by keys, {moved} moved by {name}")
    counts = {
        "connections": len(asked),
        "commands": len(sent),
        "responses": len(answered),
        "WRITEs": len(writes),
        "READs": len(reads),
        "capsules with data": sum(p.sgl_type == IN_CAPSULE and p.sgl_length > 0 for p in commands),
        "capsules in several packets": len(sent) - len(commands),
    }
    for what, least in [("WRITEs", 50), ("READs", 8), ("capsules with data", 8), ("capsules in several packets", 8)]:
        if counts[what] < least:
            faults.append(f"only {counts[what]} {what}")
    return faults, ", ".join(f"{count} {what}" for what, count in counts.items())


def direction(packet):
    """Which way a command moves data: 1 to the controller, 2 from it. Among those of Fabrics only Connect moves any by a key."""
    return packet.command & 3 if packet.command is not None else int(packet.fabrics == CONNECT)
