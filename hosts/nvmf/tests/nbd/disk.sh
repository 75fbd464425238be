# /dev/vda is an export: a file system on its first half, random writes that are verified on the other.
#   PORT  that of another export on the outer machine, of 64 MiB
. ./lib.sh
disk=/dev/vda

step "the disk is there"
expect '^134217728$' blockdev --getsize64 $disk
expect '^512$' blockdev --getss $disk

step "a file system that is used"
allow 'EXT4-fs \(vda\): (mounted|unmounting) filesystem'
run mkfs.ext4 -q -F $disk 64M
mount $disk /mnt
dd if=/dev/urandom of=/mnt/file bs=64k count=256 2>/dev/null
cp /mnt/file /mnt/copy; mkdir /mnt/many; for n in $(seq 50); do echo "$n" >/mnt/many/"$n"; done
rm /mnt/copy; sync
sum=$(md5sum </mnt/file | cut -d' ' -f1); echo "MD5 $sum"
umount /mnt

step "what it holds, after it was mounted again"
allow 'EXT4-fs \(vda\): (mounted|unmounting) filesystem'
echo 3 >/proc/sys/vm/drop_caches
mount -o ro $disk /mnt
[ "$(md5sum </mnt/file | cut -d' ' -f1)" = "$sum" ] || fail "the file differs"
[ "$(cat /mnt/many/* | wc -l)" = 50 ] || fail "files are missing"
umount /mnt

step "random writes, verified, and blocks discarded"
run fio --name=verify --filename=$disk --offset=64M --size=16M --rw=randwrite --bsrange=4k-128k --ioengine=libaio \
  --iodepth=16 --direct=1 --verify=crc32c --verify_fatal=1 --fsync=64
run blkdiscard -o 83886080 -l 16777216 $disk

step "the kernel's NBD driver"
modprobe nbd
run nbd-client -N second -connections 2 "$OUTER" "$PORT" /dev/nbd0
expect '^67108864$' blockdev --getsize64 /dev/nbd0
expect '^512$' blockdev --getss /dev/nbd0
run fio --name=verify --filename=/dev/nbd0 --size=16M --rw=randwrite --bsrange=4k-128k --ioengine=libaio --iodepth=16 \
  --direct=1 --verify=crc32c --verify_fatal=1 --fsync=64
run blkdiscard -o 33554432 -l 16777216 /dev/nbd0
run nbd-client -d /dev/nbd0
