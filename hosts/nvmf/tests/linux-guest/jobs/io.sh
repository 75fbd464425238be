# A file system, checksums, Deallocate and verified random I/O on every namespace, for each way of connecting.
#   DIGESTS  "" or "--hdr-digest --data-digest"      QUEUES  numbers of I/O queues to connect with, at most one per CPU
. ./lib.sh

# file_system DEVICE: what is written must read back after the caches were dropped.
file_system() {
  run mkfs.ext4 -q -F "$1"; mount "$1" /mnt
  mkdir /mnt/d; head -c 12000000 /dev/urandom >/mnt/d/data; cp /mnt/d/data /mnt/copy
  sum=$(md5sum </mnt/d/data); sync; umount /mnt; echo 3 >/proc/sys/vm/drop_caches
  mount "$1" /mnt
  for f in /mnt/d/data /mnt/copy; do [ "$(md5sum <$f)" = "$sum" ] || fail "$f reads back differently"; done
  rm /mnt/copy; run fstrim -v /mnt; umount /mnt
}

# deallocate DEVICE: what was deallocated reads as zeroes, where the namespace says so (DLFEAT 1).
deallocate() {
  run dd if=/dev/urandom of="$1" bs=1M count=8 oflag=direct
  run blkdiscard -o 1M -l 6M "$1"
  run blkdiscard -z -o 2M -l 2M "$1"
  nvme id-ns "$1" | grep -q '^dlfeat *: [19]$' || return 0
  [ "$(dd if="$1" bs=1M skip=1 count=6 iflag=direct 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] || fail "not zeroes"
}

# verified DEVICE QUEUES: one thread per queue writes at random, then reads back and checks each block.
verified() {
  each=$((32 / $2))
  fio --name=verify --filename="$1" --direct=1 --ioengine=libaio --iodepth=16 --thread --numjobs="$2" \
    --rw=randwrite --bsrange=4k-128k --size=${each}m --offset_increment=${each}m --fsync=64 \
    --cpus_allowed=0-$(($2 - 1)) --cpus_allowed_policy=split \
    --verify=crc32c --do_verify=1 --verify_fatal=1 --group_reporting >/tmp/fio 2>&1 || { cat /tmp/fio; fail "verify"; }
  grep -E 'IOPS=|err=' /tmp/fio
}

# speed DEVICE WAY RW BLOCK DEPTH
speed() {
  run fio --name=speed --filename="$1" --direct=1 --ioengine=libaio --rw="$3" --bs="$4" --iodepth="$5" --runtime=2 --time_based \
    --output-format=terse --terse-version=3 >/dev/null
  figure "$3 $4 depth $5, $2: $(awk -F';' '{ printf "%d IOPS, %.1f MiB/s", $8 + $49, ($7 + $48) / 1024 }' /tmp/out)"
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
