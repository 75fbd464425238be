# A file system, checksums, Deallocate and verified random I/O on every namespace, for each way of connecting.
#   DIGESTS  "" or "--hdr-digest --data-digest"      QUEUES  numbers of I/O queues to connect with, at most one per CPU
. ./lib.sh

# deallocate DEVICE: what was deallocated reads as zeroes, where the namespace says so (DLFEAT 1).
deallocate() {
  run dd if=/dev/urandom of="$1" bs=1M count=8 oflag=direct
  run blkdiscard -o 1M -l 6M "$1"
  run blkdiscard -z -o 2M -l 2M "$1"
  nvme id-ns "$1" | grep -q '^dlfeat *: [19]$' || return 0
  [ "$(dd if="$1" bs=1M skip=1 count=6 iflag=direct 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] || fail "not zeroes"
}

for queues in $QUEUES; do for flow in "" --disable-sqflow; do
  way="$queues I/O queues${DIGESTS:+, digests}${flow:+, no SQ flow control}"
  step "connect: $way"
  # shellcheck disable=SC2086
  connect --nr-io-queues="$queues" $DIGESTS $flow
  [ "$(io_queues)" = "$queues" ] || fail "$(io_queues) I/O queues"
  for n in $(seq "$NAMESPACES"); do
    D=$(device "$n")
    step "file system: namespace $n, $way"; file_system "$D"
    step "blkdiscard: namespace $n, $way"; deallocate "$D"
    step "fio verify: namespace $n, $way"; verified "$D" "$queues"
  done
  if [ "$flow" ]; then
    step "speed: $way"
    for pattern in "randread 4k 1" "randread 4k 16" "randwrite 4k 16" "read 128k 4" "write 128k 4"; do
      # shellcheck disable=SC2086
      speed "$(device 1)" "$way" $pattern
    done
  fi
  step "disconnect: $way"; disconnect
done; done
