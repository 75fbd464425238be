# Every administrative question nvme-cli asks, and each I/O command on its own.
. ./lib.sh

step discover
expect "subnqn: +$NQN" nvme discover -t tcp -a "$OUTER" -s "$PORT"
step discover with digests
expect "subnqn: +$NQN" nvme discover -t tcp -a "$OUTER" -s "$PORT" --hdr-digest --data-digest
step connect
begun=$(now); connect; figure "connect, namespaces up: $(since "$begun") s"
step list
expect "$NQN" nvme list -v
expect "$NQN" nvme list-subsys
run nvme list
step id-ctrl
expect "^subnqn[[:space:]]*: $NQN" nvme id-ctrl "/dev/$CTRL" -H
cp /tmp/out /tmp/id-ctrl
oncs=$(sed -n 's/^oncs *: *//p' /tmp/id-ctrl)
field() { sed -n "s/^$1 *: *//p" /tmp/id-ctrl; }
[ "$(field cntlid)" != 0 ] || fail "cntlid 0"
[ "$(field ctratt)" ] && [ "$(field ioccsz)" -ge 4 ] && [ "$(field iorcsz)" = 1 ] && [ "$(field icdoff)" = 0 ] || fail "fabrics fields"
step id-ns
for n in $(seq "$NAMESPACES"); do expect '^nsze[[:space:]]*: 0x[1-9a-f]' nvme id-ns "/dev/$CTRL" -n "$n"; done
[ "$PEER" = nvmet ] || refuse 'Invalid Namespace' nvme id-ns "/dev/$CTRL" -n 4242
step list-ns
expect "0x$NAMESPACES$" nvme list-ns "/dev/$CTRL"
step ns-descs
for n in $(seq "$NAMESPACES"); do expect '(uuid|nguid|eui64)[[:space:]]*: ' nvme ns-descs "/dev/$CTRL" -n "$n"; done
step smart-log
expect 'critical_warning[[:space:]]*: 0$' nvme smart-log "/dev/$CTRL"
step error-log
expect 'Error Log Entries' nvme error-log "/dev/$CTRL" -e 4
step effects-log
expect 'ACS2? .*Identify|Identify' nvme effects-log "/dev/$CTRL" --csi=0 -H
step other logs
run nvme fw-log "/dev/$CTRL"
run nvme changed-ns-list-log "/dev/$CTRL"
refuse 'Invalid (Log Page|Field)' nvme get-log "/dev/$CTRL" -i 0x7e -l 512

step get-feature of all
# Those that an I/O controller must have; the others may only be refused as an unknown identifier.
refusal="Invalid Field"; [ "$PEER" = nvmf ] || refusal="$refusal|Data SGL Length Invalid"
for fid in $(seq 1 32) 128 129 130 131 132; do
  echo "+ nvme get-feature -f $fid"
  if nvme get-feature "/dev/$CTRL" -f "$fid" -H >/tmp/out 2>&1 || nvme get-feature "/dev/$CTRL" -f "$fid" -n 1 -H >/tmp/out 2>&1; then
    cat /tmp/out
  else
    cat /tmp/out; grep -qE "$refusal" /tmp/out || fail "feature $fid"
    case " $FEATURES " in *" $fid "*) fail "feature $fid is required" ;; esac
  fi
done
host=$(tr -d - </etc/nvme/hostid | sed 's/../& /g')
expect "$host" nvme get-feature "/dev/$CTRL" -f 0x81 --cdw11=1 --data-len=16   # the 128-bit host identifier
step properties
expect 'Maximum Queue Entries Supported +\(MQES\): [1-9]' nvme get-property "/dev/$CTRL" --offset=0x00 -H
expect 'NVMe specification [12]\.' nvme get-property "/dev/$CTRL" --offset=0x08 -H
expect '\(EN\): Yes' nvme get-property "/dev/$CTRL" --offset=0x14 -H
expect '\(RDY\): Yes' nvme get-property "/dev/$CTRL" --offset=0x1c -H

step I/O commands
D=$(device 1); size=$(blockdev --getss "$D"); last=$((4096 / size - 1))
dd if=/dev/urandom of=/tmp/a bs=4096 count=1 2>/dev/null; dd if=/dev/urandom of=/tmp/b bs=4096 count=1 2>/dev/null
run nvme write "$D" -s 8 -c $last -z 4096 -d /tmp/a
run nvme read "$D" -s 8 -c $last -z 4096 -d /tmp/back
run cmp /tmp/a /tmp/back
run nvme flush "$D" -n 1
if [ $((oncs & 1)) = 1 ]; then
  run nvme compare "$D" -s 8 -c $last -z 4096 -d /tmp/a
  refuse 'Compare Failure' nvme compare "$D" -s 8 -c $last -z 4096 -d /tmp/b
fi
[ $((oncs & 128)) = 0 ] || run nvme verify "$D" -s 8 -c $last
run nvme write-zeroes "$D" -s 8 -c $last
run nvme read "$D" -s 8 -c $last -z 4096 -d /tmp/back
dd if=/dev/zero of=/tmp/zero bs=4096 count=1 2>/dev/null; run cmp /tmp/zero /tmp/back
run nvme dsm "$D" --ad --slbs=8 --blocks=$((last + 1))
[ "$PEER" = nvmet ] || refuse 'LBA Out of Range' nvme read "$D" -s $(($(blockdev --getsize64 "$D") / size)) -c $last -z 4096 -d /tmp/back
refuse 'Invalid Command Opcode' nvme io-passthru "$D" -o 0x7e -n 1
step disconnect
begun=$(now); disconnect; figure "disconnect: $(since "$begun") s"
