# A board as target: discovery, a file system on its storage that outlives the association, zeroes, verified I/O, resets.
#   FILE   bytes of a file      QUEUES  I/O queues that the board has for a host, whatever happens to the host's last association
#   HOLES  "yes" if blocks that are deallocated take no room outside
. ./lib.sh

# fill: files on /mnt; `filled` has their checksum, `sum` that of the large one.
fill() {
  head -c "$FILE" /dev/urandom >/mnt/data; mkdir /mnt/d
  for i in $(seq 20); do head -c $((i * 500)) /dev/urandom >"/mnt/d/$i"; done
  sum=$(md5sum </mnt/data | cut -d' ' -f1); filled=$(checksum)
}
checksum() { cat /mnt/data /mnt/d/* | md5sum; }
# zeroes DEVICE MIB COUNT: whether that is what there is.
zeroes() { [ "$(dd if="$1" bs=1M skip="$2" count="$3" iflag=direct 2>/dev/null | tr -d '\0' | wc -c)" = 0 ] || fail "not zeroes"; }
verified() {
  run fio --name=verify --filename="$1" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bsrange=512-64k --size=4m \
    --verify=crc32c --do_verify=1 --verify_fatal=1 --fsync=64
}

step discover
expect "subnqn: +$NQN" nvme discover -t tcp -a "$OUTER" -s "$PORT"
step discover with digests
expect "subnqn: +$NQN" nvme discover -t tcp -a "$OUTER" -s "$PORT" --hdr-digest --data-digest
step connect, a queue for each CPU if the board has it
begun=$(now); connect; figure "connect, namespaces up: $(since "$begun") s; $(io_queues) I/O queues for $(nproc) CPUs"
[ "$(io_queues)" -ge "$QUEUES" ]
D=$(device 1)
step discover while that is connected
expect "subnqn: +$NQN" nvme discover -t tcp -a "$OUTER" -s "$PORT"
step identify and logs
expect "^subnqn[[:space:]]*: $NQN" nvme id-ctrl "/dev/$CTRL"
for n in $(seq "$NAMESPACES"); do run nvme id-ns "$(device "$n")"; done
run nvme smart-log "/dev/$CTRL"; run nvme list
step bytes written outside are read here
[ "$(dd if="$D" bs=1M count=2 iflag=direct 2>/dev/null | md5sum | cut -d' ' -f1)" = "$(outer md5 0 2097152)" ] || fail "they differ"
step a file system
run mkfs.ext4 -q -F "$D"; mount "$D" /mnt
fill; umount /mnt
step disconnect
disconnect
step the file system is sound outside, and has the bytes
outer fsck
[ "$sum" = "$(outer file-md5 /data)" ] || fail "they differ"
step reconnect with digests: what was written reads back
connect --hdr-digest --data-digest --keep-alive-tmo=5
D=$(device 1); echo 3 >/proc/sys/vm/drop_caches
mount "$D" /mnt
[ "$(checksum)" = "$filled" ] || fail "reads back differently"
rm /mnt/data
if [ "${HOLES-}" ]; then
  step blocks that are not used any more are given back outside
  sync; before=$(outer allocated); run fstrim -v /mnt; after=$(outer allocated)
  figure "the image takes $before bytes before fstrim, $after after it"
  [ $((before - after)) -ge $((FILE / 2)) ] || fail "it is as large as before"
fi
step the file system is sound after that
umount /mnt
outer fsck
step zeroes, and what is beside them stays
run dd if=/dev/urandom of="$D" bs=1M count=4 oflag=direct
first=$(outer md5 0 1048576); last=$(outer md5 3145728 1048576)
run blkdiscard -z -o 1M -l 2M "$D"
zeroes "$D" 1 2
[ "$(dd if=/dev/zero bs=1M count=2 2>/dev/null | md5sum | cut -d' ' -f1)" = "$(outer md5 1048576 2097152)" ] || fail "not outside"
[ "$first" = "$(outer md5 0 1048576)" ] && [ "$last" = "$(outer md5 3145728 1048576)" ] || fail "too many"
step verified random I/O, 16 at a time, with digests
verified "$D"
for n in $(seq 2 "$NAMESPACES"); do
  step "a file system on namespace $n, with digests"
  N=$(device "$n")
  run mkfs.ext4 -q -F "$N"; mount "$N" /mnt
  fill; umount /mnt; echo 3 >/proc/sys/vm/drop_caches
  mount "$N" /mnt
  [ "$(checksum)" = "$filled" ] || fail "reads back differently"
  umount /mnt
  step "zeroes on namespace $n"
  run dd if=/dev/urandom of="$N" bs=1M count=4 oflag=direct
  run blkdiscard -z -o 1M -l 2M "$N"; zeroes "$N" 1 2
  step "verified random I/O on namespace $n, 16 at a time, with digests"
  verified "$N"
done
step disconnect again
disconnect
step reset under load
connect --nr-io-queues="$QUEUES"
D=$(device 1)
allow 'nvme nvme[0-9]+: (resetting controller|failed to send request -(32|104))|block nvme[0-9n]+: no usable path - requeuing I/O|nvme_ns_head_submit_bio: [0-9]+ callbacks suppressed'
fio --name=load --filename="$D" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=4k --size=4m --thread --numjobs="$QUEUES" \
  --offset_increment=4m --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/load 2>&1 & load=$!
sleep 1
for _ in 1 2 3; do run nvme reset "/dev/$CTRL"; until_true 10 state_is live; done
wait $load || { cat /tmp/load; fail "I/O failed or came back wrong"; }
step speed
for pattern in "randread 4k 1" "randread 4k 8" "randwrite 4k 1" "randwrite 4k 8" "read 128k 4" "write 128k 4"; do
  # shellcheck disable=SC2086
  set -- $pattern
  run fio --name=speed --filename="$D" --direct=1 --ioengine=libaio --rw="$1" --bs="$2" --iodepth="$3" --runtime=2 \
    --time_based --output-format=terse --terse-version=3 >/dev/null
  figure "$1 $2, $3 at a time: $(awk -F';' '{ printf "%d IOPS, %.1f MiB/s", $8 + $49, ($7 + $48) / 1024 }' /tmp/out)"
done
step disconnect for the last time
disconnect
