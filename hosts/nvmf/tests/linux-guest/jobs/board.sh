# A board with little memory as target: discovery, a file system that outlives the association, verified I/O, resets.
#   FILE  bytes of a file
. ./lib.sh

step discover
expect "subnqn: +$NQN" nvme discover -t tcp -a "$OUTER" -s "$PORT"
step discover with digests
expect "subnqn: +$NQN" nvme discover -t tcp -a "$OUTER" -s "$PORT" --hdr-digest --data-digest
step connect, a queue for each CPU if the board has it
begun=$(now); connect; figure "connect, namespace up: $(since "$begun") s; $(io_queues) I/O queues for $(nproc) CPUs"
[ "$(io_queues)" -ge 1 ]
D=$(device 1)
step identify and logs
expect "^subnqn[[:space:]]*: $NQN" nvme id-ctrl "/dev/$CTRL"
run nvme id-ns "$D"; run nvme smart-log "/dev/$CTRL"; run nvme list
step bytes written outside are read here
[ "$(dd if="$D" bs=1M count=2 iflag=direct 2>/dev/null | md5sum | cut -d' ' -f1)" = "$(outer md5 0 2097152)" ] || fail "they differ"
step a file system
run mkfs.ext4 -q -F "$D"; mount "$D" /mnt
head -c "$FILE" /dev/urandom >/mnt/data; mkdir /mnt/d
for i in $(seq 20); do head -c $((i * 500)) /dev/urandom >"/mnt/d/$i"; done
sum=$(md5sum </mnt/data | cut -d' ' -f1); small=$(cat /mnt/d/* | md5sum)
umount /mnt
step disconnect
disconnect
step the file system is sound outside, and has the bytes
outer fsck
[ "$sum" = "$(outer file-md5 /data)" ] || fail "they differ"
step reconnect with digests: what was written reads back
connect --hdr-digest --data-digest --keep-alive-tmo=5
D=$(device 1); echo 3 >/proc/sys/vm/drop_caches
mount "$D" /mnt
[ "$(md5sum </mnt/data | cut -d' ' -f1)" = "$sum" ] && [ "$(cat /mnt/d/* | md5sum)" = "$small" ] || fail "reads back differently"
rm /mnt/data; umount /mnt
outer fsck
step verified random I/O, 16 at a time, with digests
run fio --name=verify --filename="$D" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bsrange=512-64k --size=4m \
  --verify=crc32c --do_verify=1 --verify_fatal=1
step disconnect again
disconnect
step reset under load
connect --nr-io-queues=1
D=$(device 1)
allow 'nvme nvme[0-9]+: (resetting controller|failed to send request -(32|104))|block nvme[0-9n]+: no usable path - requeuing I/O|nvme_ns_head_submit_bio: [0-9]+ callbacks suppressed'
fio --name=load --filename="$D" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=4k --size=4m \
  --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/load 2>&1 & load=$!
sleep 1
for _ in 1 2 3; do run nvme reset "/dev/$CTRL"; until_true 10 state_is live; done
wait $load || { cat /tmp/load; fail "I/O failed or came back wrong"; }
step speed
for pattern in "randread 1" "randread 8" "randwrite 1" "randwrite 8"; do
  run fio --name=speed --filename="$D" --direct=1 --ioengine=libaio --rw="${pattern% *}" --bs=4k --iodepth="${pattern#* }" --runtime=2 \
    --time_based --output-format=terse --terse-version=3 >/dev/null
  figure "$pattern at a time, 4k: $(awk -F';' '{ printf "%d IOPS, %.1f MiB/s", $8 + $49, ($7 + $48) / 1024 }' /tmp/out)"
done
step disconnect for the last time
disconnect
