# Our target on a block device of this guest's that can be polled; our host and the kernel's use it.
. ./lib.sh
HARMLESS="$HARMLESS|null_blk: (disk nullb0 created|module loaded)"
OUTER=127.0.0.1 PORT=4420 NQN=nqn.2024-01.test:file NAMESPACES=1 DISK=/dev/nullb0

# bench OPTIONS [ARGUMENT...]: our host and our target in one process.
bench() {
  local options=$1; shift
  run ./nvmf bench --file "$DISK,$options" --eta never "$@"
}
# iops OPTIONS: single reads, a second.
iops() {
  bench "$1" --rw randread --bs 4k --runtime 3 >&2
  awk '/^randread.*\|/ { split($0, half, "|"); n = split(half[1], word, " "); print word[n - 1] }' /tmp/out
}

step "a device with queues to poll"
modprobe null_blk nr_devices=0
config=/sys/kernel/config/nullb/nullb0; mkdir $config
# What interrupts, takes ten milliseconds; what is polled for does not wait.
for setting in size=64 blocksize=512 memory_backed=1 discard=1 queue_mode=2 submit_queues=2 poll_queues=1 irqmode=2 \
  completion_nsec=10000000 power=1; do echo "${setting#*=}" >"$config/${setting%=*}"; done
expect '^1$' cat /sys/block/nullb0/queue/io_poll

step "reads are polled for where they can be"
told=$(iops iopoll=off) polled=$(iops iopoll=on) auto=$(iops iopoll=auto)
figure "4k reads, one at a time, a second: interrupted $told, polled $polled"
[ "$told" -le 100 ] || fail "$told interrupts a second, of at most 100"
[ "$polled" -gt 100 ] && [ "$auto" -gt 100 ] || fail "$polled and $auto: nobody polled"

step "what is written is read back"
bench iopoll=on --rw randwrite --bs 4k --iodepth 32 --verify
bench iopoll=on,fixed=off --rw randwrite --bs 128k --iodepth 8 --verify
bench iopoll=off,io=threads --rw randread --bs 128k --iodepth 8 --runtime 1

step "what cannot be polled says so"
refuse 'iopoll=on, but that takes direct I/O' ./nvmf target --file "$DISK,iopoll=on,direct=off" --listen 127.0.0.1:0
refuse 'iopoll=on, but that takes io_uring' ./nvmf target --file "$DISK,iopoll=on,io=threads" --listen 127.0.0.1:0
refuse 'iopoll=on, but it is on no block device' ./nvmf target --file /tmp/disk,size=1M,iopoll=on --listen 127.0.0.1:0

step "the kernel's host on a polled device"
./nvmf target --listen $OUTER:$PORT --nqn $NQN --file "$DISK,iopoll=on" >/tmp/target 2>&1 & target=$!
until_true 10 grep -q ^ready /tmp/target
connect --nr-io-queues=2
verified "$(device 1)" 2
disconnect

step "a worker sleeps when nothing is under way"
before=$(awk '{ print $14 + $15 }' /proc/$target/stat); sleep 2
[ $(($(awk '{ print $14 + $15 }' /proc/$target/stat) - before)) -le 4 ] || fail "it does not"
run kill $target; wait $target
