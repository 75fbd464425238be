# What the target's options promise: limits, names, who may connect, read-only and null namespaces, IPv6.  Only for ours.
#   PORT6          the port of the second listener, on [::1]
#   READONLY_MD5   of namespace 3, a read-only file of 4 MiB; namespace 4 is null
. ./lib.sh
HARMLESS="$HARMLESS|nvme nvme[0-9]+: (queue_size|sqsize) [0-9]+ > ctrl (sqsize|maxcmd) [0-9]+, clamping down"
OUTER6=fec0::2   # the user network's name for the outer machine's ::1

step discovery lists both listeners
expect "trsvcid:[[:space:]]*$PORT\$" nvme discover -t tcp -a "$OUTER" -s "$PORT"
expect "trsvcid:[[:space:]]*$PORT6\$" nvme discover -t tcp -a "$OUTER" -s "$PORT"
step a host that is not allowed
allow 'nvme nvme[0-9]+: (Connect for subsystem .* is not allowed|failed to connect queue: 0)'
refuse '.' nvme connect -t tcp -a "$OUTER" -s "$PORT" -n "$NQN" --hostnqn=nqn.2024-01.test:stranger
dmesg | grep 'is not allowed' || fail "refused for another reason"
step an unknown subsystem
allow 'nvme nvme[0-9]+: (Connect Invalid Data Parameter, subsysnqn|failed to connect queue: 0)'
refuse '.' nvme connect -t tcp -a "$OUTER" -s "$PORT" -n nqn.2024-01.test:unknown
dmesg | grep 'Invalid Data Parameter' || fail "refused for another reason"

step limits
connect --nr-io-queues=4
[ "$(io_queues)" = 2 ] || fail "$(io_queues) I/O queues"
[ "$(cat "/sys/class/nvme/$CTRL/sqsize")" = 15 ] || fail "sqsize $(cat "/sys/class/nvme/$CTRL/sqsize")"
step names
expect '^sn +: PEER-0001 *$' nvme id-ctrl "/dev/$CTRL"
grep -E '^mn +: A model of a target *$' /tmp/out || fail "model"
step writes without data in capsules
expect '^ioccsz +: 4$' nvme id-ctrl "/dev/$CTRL"
D=$(device 1)
run fio --name=verify --filename="$D" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bsrange=4k-128k --size=16m \
  --verify=crc32c --do_verify=1 --verify_fatal=1
step a read-only namespace
D=$(device 3)
[ "$(blockdev --getro "$D")" = 1 ] || fail "Linux thinks it can be written"
[ "$(md5sum <"$D" | cut -d' ' -f1)" = "$READONLY_MD5" ] || fail "reads differ from the file"
head -c 4096 /dev/urandom >/tmp/a
refuse 'Write Protected' nvme write "$D" -s 0 -c 0 -z "$(blockdev --getss "$D")" -d /tmp/a
step a null namespace
D=$(device 4)
run dd if=/dev/urandom of="$D" bs=1M count=4 oflag=direct
[ "$(dd if="$D" bs=1M count=4 iflag=direct 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] || fail "not zeroes"
disconnect

step IPv6
has_address6() { ip -6 addr show dev eth0 | grep 'fec0::' | grep -vq tentative; }
until_true 20 has_address6
connect --traddr=$OUTER6 --trsvcid="$PORT6"
D=$(device 1)
run dd if=/dev/urandom of="$D" bs=1M count=4 oflag=direct
run dd if="$D" of=/dev/null bs=1M count=4 iflag=direct

step two paths to one namespace
first=$CTRL
connect
[ "$(device 1)" = "$D" ] || fail "another device"
[ "$(nvme list-subsys | grep -c ' tcp .* live')" = 2 ] || fail "not two paths"
sum=$(dd if="$D" bs=1M count=4 iflag=direct 2>/dev/null | md5sum)
run nvme disconnect -d "$first"
[ "$(dd if="$D" bs=1M count=4 iflag=direct 2>/dev/null | md5sum)" = "$sum" ] || fail "the other path reads differently"
disconnect
