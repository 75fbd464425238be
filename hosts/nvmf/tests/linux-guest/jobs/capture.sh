# Two short sessions, plain and with both digests, which the outer machine captures for tshark to judge.
. ./lib.sh

session() { # NAME OPTION...
  name=$1; shift
  step "session to capture: $name"
  outer capture "$name" "$@"
  run nvme discover -t tcp -a "$OUTER" -s "$PORT" "$@"
  connect --nr-io-queues=2 "$@"
  run nvme smart-log "/dev/$CTRL"
  D=$(device 1)
  for block in 4k 16k 128k 512k; do   # below and above what goes in capsules, and in several PDUs
    run dd if=/dev/urandom of="$D" bs=$block count=16 oflag=direct
    run dd if="$D" of=/dev/null bs=$block count=16 iflag=direct
  done
  run blkdiscard -o 1M -l 1M "$D"
  disconnect
  outer capture-end
}
session plain
session digests --hdr-digest --data-digest
session digests-no-sqflow --hdr-digest --data-digest --disable-sqflow
