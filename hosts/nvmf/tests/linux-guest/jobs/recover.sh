# Resets, a target that dies under load and comes back, one that is stopped and started, and 50 rounds of connecting.
#   ROUNDS  how many rounds
. ./lib.sh

# Which kernel log lines belong to a reset; what was about to be sent when the host shut its sockets fails
# with EPIPE (32), or with ECONNRESET (104) if data arrived on such a socket.
PAUSED='block nvme[0-9n]+: no usable path - requeuing I/O|nvme_ns_head_submit_bio: [0-9]+ callbacks suppressed|nvme nvme[0-9]+: (resetting controller|failed to send request -(32|104))'
# Which kernel log lines belong to a lost connection.  Memory that was lost may come back as another namespace; a file may not.
# State 11 is CLOSING: both ends have closed at the same time.
LOST='identifiers changed for nsid 1$|nvme_tcp: queue [0-9]+: failed to receive icresp|nvme nvme[0-9]+: (I/O tag|starting error recovery|failed nvme_keep_alive_end_io|Reconnecting in|failed to connect socket|Failed reconnect attempt|Successfully reconnected|reading non-mdts-limits failed|failed to send request|queue [0-9]+: timeout|queue [0-9]+ socket state 11$|resetting controller|[a-z ]*Connect command failed)'

under_load() { # DEVICE: verified writing in the background; wait for it with `load_passes`
  fio --name=load --filename="$1" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bsrange=4k-128k --size=48m --rate=4m \
    --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/load 2>&1 & load=$!
  sleep 2
}
reconnected() { dmesg | grep -q 'Successfully reconnected' && state_is live; }
load_passes() { wait $load || { cat /tmp/load; fail "I/O failed or came back wrong"; }; grep -E 'IOPS|err=' /tmp/load; }

step connect
connect --nr-io-queues=4 --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=5
D=$(device 2)

# The outer machine filled the first 16 MiB of the image before the target saw it.
step bytes written outside are read here
[ "$(dd if="$D" bs=1M count=16 iflag=direct 2>/dev/null | md5sum | cut -d' ' -f1)" = "$(outer md5 0 16777216)" ] || fail "they differ"
step bytes written here are read outside
head -c 16777216 /dev/urandom >/tmp/pattern; sum=$(md5sum </tmp/pattern | cut -d' ' -f1)
run dd if=/tmp/pattern of="$D" bs=512k seek=64 oflag=direct conv=fsync
[ "$sum" = "$(outer md5 33554432 16777216)" ] || fail "they differ"
step a file system made here is sound outside
run mkfs.ext4 -q -F "$D"; mount "$D" /mnt; cp /tmp/pattern /mnt/; umount /mnt
outer fsck

step reset under load
allow "$PAUSED"
under_load "$D"
for i in 1 2 3 4 5; do run nvme reset "/dev/$CTRL"; until_true 10 state_is live; done
load_passes

step the target is killed under load and comes back
allow "$PAUSED|$LOST"
under_load "$D"
outer kill
begun=$(now); until_true 20 reconnected; figure "live again after the target was killed and restarted: $(since "$begun") s"
load_passes

step the target is stopped under load and started later
allow "$PAUSED|$LOST"
under_load "$D"
outer stop; until_true 10 state_is connecting; sleep 2; outer start
begun=$(now); until_true 20 reconnected; figure "live again after the target was started: $(since "$begun") s"
load_passes
step an idle connection costs the target nothing
usage() { outer usage | cut -d' ' -f"$1"; }   # 1: resident KiB, 2: open files, 3: CPU time in ms
before=$(usage 3); sleep 5; after=$(usage 3)
figure "target's CPU time in 5 s of an idle connection: $((after - before)) ms"
[ $((after - before)) -le 50 ] || fail "not idle"
step disconnect
disconnect

step "$ROUNDS rounds of connect and disconnect"
memory=$(usage 1) files=$(usage 2); started=$(now)
for _ in $(seq "$ROUNDS"); do connect --nr-io-queues=4 >/dev/null; disconnect >/dev/null; done
figure "$ROUNDS rounds of connect and disconnect: $(since "$started") s"
figure "target's growth in the rounds: $(($(usage 1) - memory)) KiB resident, $(($(usage 2) - files)) open files"
[ "$(usage 1)" -le $((memory + 4096)) ] || fail "its memory grew"
[ "$(usage 2)" -le "$files" ] || fail "it keeps files open"
