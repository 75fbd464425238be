# `nvmf target` over RDMA and TCP in the guest, on a software RDMA device of the kernel's, whose hosts are in the same kernel.
#   DEVICE   rxe (RoCEv2) or siw (iWARP)     ROUNDS  how often to connect again
. ./lib.sh
HARMLESS="$HARMLESS|rdma_rxe: loaded|queue_size [0-9]+ > ctrl sqsize [0-9]+, clamping down"
ADDRESS=10.0.2.15 NQN=nqn.2024-01.test:rdma NAMESPACES=2 TARGET=''
OUTER=$ADDRESS PORT=4420 TRANSPORT=rdma

# Which kernel log lines belong to a lost connection, and to commands that were under way when a controller was deleted.
LOST='block nvme[0-9n]+: no (usable|available) path|nvme_ns_head_submit_bio: [0-9]+ callbacks|nvme nvme[0-9]+: (I/O tag|RECV for CQE|[A-Z_ ]+ for CQE|starting error recovery|failed nvme_keep_alive_end_io|failed to send request|Reconnecting in|rdma connection establishment failed|Failed reconnect attempt|Successfully reconnected|rdma_resolve_addr|Connect (rejected|command failed)|queue [0-9]+: timeout|Property Set error|resetting controller|disconnected|[a-z ]*Connect command failed|Shutdown timeout|got bad cqe|Removing ctrl)'
GONE='I/O error, dev nvme|Buffer I/O error on dev nvme|critical .* error, dev nvme|nvme[0-9n]+: I/O Cmd'

# serve [OPTION...]: starts the target, by RDMA and TCP, and waits until it is ready.
serve() {
  rm -f /tmp/ready
  ./nvmf target --nqn "$NQN" --listen rdma:$ADDRESS:4420 --listen tcp:$ADDRESS:4421 --ram 128M --file "/tmp/disk,size=64M,bs=4096" \
    "$@" >/tmp/ready 2>>/tmp/target & TARGET=$!
  until_true 20 grep -qs . /tmp/ready
  grep -qx "ready nvme+rdma://$ADDRESS:4420/$NQN" /tmp/ready || fail "not a ready line: $(cat /tmp/ready)"
}
# stopped: asks the target to end; it must do so in time, and leave nothing in the kernel.
stopped() {
  kill $TARGET; wait $TARGET || { cat /tmp/target; fail "the target ended with status $?"; }
  [ -z "$(resources)" ] || fail "it leaves $(resources)"
}
# What the kernel's RDMA has of programs, which are but the target, as "COUNT KIND" lines; and what the target's process has.
resources() {
  for kind in ctx pd mr cq srq qp cm_id; do rdma resource show $kind | sed -n "s/.* pid [0-9]* .*/$kind/p"; done | sort | uniq -c
}
files() { ls /proc/$TARGET/fd | wc -l; }
resident() { awk '/^VmRSS/ { print $2 }' /proc/$TARGET/status; }
pinned() { awk '/^VmPin/ { print $2 }' /proc/$TARGET/status; }   # KiB
cpu() { awk '{ print ($14 + $15) * 10 }' /proc/$TARGET/stat; }   # ms
link_add() { run rdma link add "${DEVICE}0" type "$DEVICE" netdev eth0; }
is_serving() { [ "$(rdma resource show cm_id 2>/dev/null | grep -c "LISTEN.*$ADDRESS:4420")" -ge 1 ]; }
# load DEVICE [OPTION...]: writes and checks in the background.
load() {
  fio --name=load --filename="$1" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bsrange=4k-128k --size=48m --rate=4m \
    --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/load 2>&1 & load=$!
  sleep 2
}
load_passes() { wait $load || { cat /tmp/load; fail "I/O failed or came back wrong"; }; grep -E 'IOPS|err=' /tmp/load; }
reconnected() { dmesg | grep -q 'Successfully reconnected' && state_is live; }
no_controller() { [ "$(newest_controller)" = 'nvme*' ]; }

step "a $DEVICE device"
modprobe -a ib_uverbs rdma_ucm crc32_generic nvme-rdma
run modprobe "$(case $DEVICE in rxe) echo rdma_rxe ;; *) echo "$DEVICE" ;; esac)"
link_add

step "an address that no device has"
refuse 'cannot listen on 127.0.0.1:4420 by RDMA: no RDMA device has or reaches 127.0.0.1' \
  ./nvmf target --listen tcp:$ADDRESS:4421 --listen rdma:127.0.0.1

step "discovery tells of both transports"
serve
subsystems() { sed -n '/Entry 1/,$p' /tmp/out; }
run nvme discover -t tcp -a $ADDRESS -s 4421
subsystems >/tmp/log
run nvme discover -t rdma -a $ADDRESS -s 4420
subsystems | cmp - /tmp/log || fail "TCP tells of others"
cp /tmp/out /tmp/log
[ "$(grep -Ec '^trtype: +rdma$' /tmp/log)" = 2 ] && [ "$(grep -Ec '^trtype: +tcp$' /tmp/log)" = 1 ] || fail "not two by RDMA and one by TCP"
grep -q '^rdma_cms: *rdma-cm$' /tmp/log && grep -q '^rdma_qptype: *connected$' /tmp/log || fail "no RDMA subtype"

step "two I/O queues, spread over two workers"
connect --nr-io-queues=2
[ "$(io_queues)" = 2 ] || fail "$(io_queues) I/O queues"
[ "$(sed -n 's/.* qid=[12] .* worker=\([0-9]*\).*/\1/p' /tmp/target | sort -u | wc -l)" = 2 ] || fail "one worker has both"
expect '^sgls +: 0x[0-9a-f]*5$' nvme id-ctrl "/dev/$CTRL"

step "one namespace by two transports"
rdma=$CTRL; D=$(device 1)
connect --transport=tcp --trsvcid=4421 --nr-io-queues=2
[ "$(device 1)" = "$D" ] || fail "another device"
[ "$(nvme list-subsys | grep -Ec ' (tcp|rdma) .* live')" = 2 ] || fail "not two paths"
run dd if=/dev/urandom of=/tmp/pattern bs=1M count=4
run dd if=/tmp/pattern of="$D" bs=128k oflag=direct
run nvme disconnect -d "$rdma"
cmp -n 4194304 "$D" /tmp/pattern || fail "TCP reads what RDMA did not write"
run nvme disconnect -d "$CTRL"
stopped

for inline in 0 4K 16K; do
  serve --rdma-inline-data $inline
  connect --nr-io-queues=2
  step "capsules with $inline of data"
  expect "^ioccsz +: $((4 + ${inline%K} * 64))\$" nvme id-ctrl "/dev/$CTRL"
  for n in 1 2; do
    D=$(device $n)
    [ $inline = 4K ] || { step "file system: namespace $n, $inline in capsules"; file_system "$D"; }
    step "fio verify: namespace $n, $inline in capsules"; verified "$D" 2
  done
  step "the target stops with $inline in capsules"; disconnect; stopped
done

step "an idle connection costs nothing"
serve
connect --nr-io-queues=2 --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=5
D=$(device 1)
run dd if=/dev/zero of="$D" bs=128k count=16 oflag=direct
before=$(cpu); sleep 5; figure "target's CPU time in 5 s of an idle connection: $(($(cpu) - before)) ms"
[ $(($(cpu) - before)) -le 100 ] || fail "not idle"

step "disconnect under load"
allow "$LOST|$GONE"
load "$D"
disconnect
! wait $load || fail "the load outlived its controller"
until_true 10 no_controller

step "the target is killed under load and comes back"
allow "$LOST"
connect --nr-io-queues=2 --reconnect-delay=1 --ctrl-loss-tmo=60 --keep-alive-tmo=5
load "$(device 2)"
kill -9 $TARGET; wait $TARGET || :
serve
begun=$(now); until_true 40 reconnected; figure "live again after the target was killed and restarted: $(since "$begun") s"
load_passes

step "the target is stopped under load and started later"
allow "$LOST"
load "$(device 2)"
kill $TARGET; wait $TARGET || { cat /tmp/target; fail "the target ended with status $?"; }
sleep 1; serve
begun=$(now); until_true 40 reconnected; figure "live again after the target was started: $(since "$begun") s"
load_passes
disconnect

step "the link is deleted under load and made again"
allow "$LOST|$GONE"
connect --nr-io-queues=2
load "$(device 1)"
run rdma link delete "${DEVICE}0"
# The kernel's host takes its controllers along.
! wait $load || fail "the load outlived its device"
until_true 20 no_controller
grep -q 'the RDMA device is gone' /tmp/target || fail "the target did not notice"
link_add
until_true 20 is_serving
connect --nr-io-queues=2
verified "$(device 1)" 2
disconnect

step "connected $ROUNDS times"
for _ in 1 2 3; do connect --nr-io-queues=2 >/dev/null; disconnect >/dev/null; done
before=$(resources) held=$(resident) open=$(files); started=$(now)
for _ in $(seq "$ROUNDS"); do connect --nr-io-queues=2 >/dev/null; disconnect >/dev/null; done
figure "$ROUNDS rounds of connect and disconnect: $(since "$started") s"
echo "$before"
[ "$(resources)" = "$before" ] || fail "RDMA resources are left over: $(resources)"
figure "target's growth in the rounds: $(($(resident) - held)) KiB resident, $(($(files) - open)) open files"
[ "$(files)" -le "$open" ] || fail "it keeps files open"
[ "$(resident)" -le $((held + 4096)) ] || fail "its memory grew"

step "the target stops when asked"
stopped

# measured RW BLOCK DEPTH WHAT: IOPS, mean latency, and the target's processor time for each command.
measured() {
  before=$(cpu)
  run fio --name=speed --filename="$(device 1)" --direct=1 --ioengine=libaio --rw="$1" --bs="$2" --iodepth="$3" --runtime=3 --time_based \
    --output-format=terse --terse-version=3 >/dev/null
  figure "$1 $2 depth $3, $4: $(awk -F';' -v ms=$(($(cpu) - before)) '{ iops = $8 + $49
    printf "%d IOPS, %d us, %d us of the target", iops, ($8 * $16 + $49 * $57) / iops, ms * 1000 / (iops * 3) }' /tmp/out)"
}
step "figures: data in capsules"
for inline in 4K 16K 4K 16K; do
  serve --rdma-inline-data $inline; connect
  for block in 4k 8k 16k; do measured randwrite $block 1 "$inline in capsules"; done
  disconnect; stopped
done
step "figures: completions at a time"
for batch in 1 4 16 64; do
  serve --rdma-batch $batch; connect
  for pattern in randread randwrite; do measured $pattern 512 32 "$batch at a time"; done
  disconnect; stopped
done
step "figures: memory that is pinned"
for connections in 1 16 64; do
  serve --rdma-inline-data 4K --srq-size 256 --rdma-workers 1 --max-queues 64
  before=$(pinned)
  ./nvmf bench "nvme+rdma://$ADDRESS:4420/$NQN?nsid=1" --connections $connections --rw randread --bs 512 --runtime 4 --eta never >/tmp/bench 2>&1 & bench=$!
  sleep 3
  figure "the target has pinned $before KiB, and $(pinned) KiB with $connections connections for I/O"
  wait $bench || { cat /tmp/bench; fail "bench"; }
  stopped
done
