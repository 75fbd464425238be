# Our host over RDMA against the kernel's nvmet-rdma, both in this guest, on a software device.
#   DEVICE   rxe (RoCEv2) or siw (iWARP)
. ./lib.sh
HARMLESS="$HARMLESS|rdma_rxe: loaded|null_blk: disk nullb0 created|nvmet: (adding nsid|creating (nvm|discovery) controller)"
HARMLESS="$HARMLESS|nvmet_(rdma|tcp): (enabling|disabling) port|EXT4-fs \(nbd0\): (mounted|unmounting) filesystem"
ADDRESS=10.0.2.15 NQN=nqn.2024-01.test:rdma
nvmet=/sys/kernel/config/nvmet
subsystem=$nvmet/subsystems/$NQN
AT=nvme+rdma://$ADDRESS DISK="nvme+rdma://$ADDRESS/$NQN?nsid=1"

# listen PORT INLINE: takes so many bytes of data in a capsule.
listen() {
  local port=$nvmet/ports/$1
  mkdir "$port"
  echo rdma >"$port/addr_trtype"; echo ipv4 >"$port/addr_adrfam"; echo $ADDRESS >"$port/addr_traddr"; echo "$1" >"$port/addr_trsvcid"
  echo "$2" >"$port/param_inline_data_size"
  ln -s "$subsystem" "$port/subsystems/"
}
unlisten() { rm "$nvmet/ports/$1/subsystems/$NQN"; rmdir "$nvmet/ports/$1"; }
# All that the device gives, to programs and to the kernel's target.
resources() { rdma resource show | sed 's/^[0-9]*: //'; }
as_before() { [ "$(resources)" = "$BEFORE" ]; }
link_add() { run rdma link add "${DEVICE}0" type "$DEVICE" netdev eth0; }
# copy [OPTION...]: copies /tmp/long in the background.
copy() {
  ./nvmf copy /tmp/long "$DISK" --reconnect-delay 1 --verify "$@" >/tmp/copied 2>&1 & copy=$!
  sleep 2; kill -0 $copy || fail "the copy was over before"
}
# link_delete: takes the device away; that waits until nobody has its files open.
link_delete() { begun=$(now); run timeout 30 rdma link delete "${DEVICE}0"; figure "the link is deleted under load in $(since "$begun") s"; }
copy_passes() { wait $copy || { cat /tmp/copied; fail "the copy failed"; }; grep -E 'WARN|copied' /tmp/copied; }
verified() { expect 'read back what was written: the same' ./nvmf bench "$@" --rw randwrite --numjobs 2 --size 8M --verify --eta never; }
# asked ANSWER READS FIELD...: what who listens answers to a request for a connection (examples/request.rs).
asked() { local answer=$1; shift; expect "^$answer\$" ./request $ADDRESS:4420 "$@"; }
# speed INLINE RW BLOCK [OPTION...]
speed() {
  local inline=$1 rw=$2 bs=$3; shift 3
  run ./nvmf bench "$DISK" --rw "$rw" --bs "$bs" --iodepth 4 --size 64M --runtime 1 --eta never "$@" >/dev/null
  figure "$rw $bs, $inline bytes in capsules: $(awk -F'|' '
    /^rand.*\|/ { n = split($1, left, " "); split($2, right, " "); iops += left[n - 1]; if (/write/) mean = right[1] }
    /^CPU/ { split($0, cpu, " ") }
    END { printf "%d IOPS, writes take %.0f us, %d %% user, %d %% system", iops, mean, cpu[2], cpu[5] }' /tmp/out)"
}

step "a $DEVICE device, and the kernel's target on it"
modprobe -a ib_uverbs rdma_ucm crc32_generic
run modprobe "$(case $DEVICE in rxe) echo rdma_rxe ;; *) echo "$DEVICE" ;; esac)"
link_add
modprobe null_blk nr_devices=1 memory_backed=1 discard=1 gb=1 bs=512
modprobe -a nvmet nvmet-rdma
mkdir "$subsystem"; echo 1 >"$subsystem/attr_allow_any_host"
mkdir "$subsystem/namespaces/1"
echo -n /dev/nullb0 >"$subsystem/namespaces/1/device_path"; echo 1 >"$subsystem/namespaces/1/enable"
listen 4420 16384

step "discover, and what is referred to"
listen 4421 0
referral=$nvmet/ports/4420/referrals/other; mkdir "$referral"
echo rdma >"$referral/addr_trtype"; echo ipv4 >"$referral/addr_adrfam"; echo $ADDRESS >"$referral/addr_traddr"
echo 4421 >"$referral/addr_trsvcid"; echo 1 >"$referral/enable"
expect "^nvme\+rdma://$ADDRESS:4420/$NQN " ./nvmf discover $AT
grep -qE "^nvme\+rdma://$ADDRESS:4421/$NQN .*, says $ADDRESS:4421" /tmp/out || fail "the referral was not followed"
expect '"trtype":"rdma"' ./nvmf discover $AT --output json
expect "$ADDRESS:4420/$NQN\?nsid=1" ./nvmf list $AT
rmdir "$referral"; unlisten 4421
refuse "nothing listens on $ADDRESS:4421" ./nvmf discover $AT:4421

step "referrals lead from one transport to the other"
modprobe nvmet-tcp
tcp=$nvmet/ports/8009; mkdir $tcp
echo tcp >$tcp/addr_trtype; echo ipv4 >$tcp/addr_adrfam; echo $ADDRESS >$tcp/addr_traddr; echo 8009 >$tcp/addr_trsvcid
ln -s "$subsystem" $tcp/subsystems/
refer() {
  local referral=$nvmet/ports/$1/referrals/other; mkdir "$referral"
  echo $2 >"$referral/addr_trtype"; echo ipv4 >"$referral/addr_adrfam"; echo $ADDRESS >"$referral/addr_traddr"
  echo $3 >"$referral/addr_trsvcid"; echo 1 >"$referral/enable"
}
refer 8009 rdma 4420; refer 4420 tcp 8009
for url in nvme+tcp://$ADDRESS:8009 $AT; do
  expect "^nvme\+tcp://$ADDRESS:8009/$NQN " ./nvmf discover $url
  grep -qE "^nvme\+rdma://$ADDRESS:4420/$NQN " /tmp/out || fail "RDMA was not asked"
done
rmdir $nvmet/ports/*/referrals/other; rm $tcp/subsystems/$NQN; rmdir $tcp

step "what cannot be connected from, and options of the other transport"
refuse 'connect from the address or interface that was asked for .*No such device' ./nvmf discover $AT --host-iface nothing0
refuse 'no RDMA device leads to' ./nvmf discover $AT --host-traddr 127.0.0.1
expect "^nvme\+rdma://$ADDRESS:4420/$NQN " ./nvmf discover $AT --host-iface eth0 --host-traddr $ADDRESS
refuse 'hdgst is of TCP' ./nvmf id-ctrl "$AT/$NQN" --hdgst
refuse 'tos is of TCP' ./nvmf id-ctrl "$AT/$NQN?tos=8"
refuse 'rdma-key is of RDMA' ./nvmf id-ctrl "nvme+tcp://$ADDRESS/$NQN" --rdma-key window

step "requests for connections: the kernel's answers"
asked 'CM REP recfmt 0 crqsize 32' 16 0 0 32 31 0
asked 'CM REJ recfmt 0 sts Invalid RECFMT' 16 1 0 32 31 0
asked 'CM REJ recfmt 0 sts Invalid HSQSIZE' 16 0 0 33 32 0
# What it lets in, and we do not: no private data, a QID that there is not, HSQSIZE 0, HRQSIZE 0, no READ, a controller that there is not.
asked 'CM REP recfmt 0 crqsize 1' 16
asked 'CM REP recfmt 0 crqsize 128' 16 0 65535 128 127 0
asked 'CM REP recfmt 0 crqsize 1' 16 0 0 32 0 0
asked 'CM REP recfmt 0 crqsize 32' 16 0 0 0 31 0
asked 'CM REP recfmt 0 crqsize 32' 0 0 0 32 31 0
asked 'CM REP recfmt 0 crqsize 128' 16 0 1 128 127 32767
# It tries to have the memory for as many commands.
allow 'WARNING: .* mm/page_alloc|Modules linked in|Call Trace|nvmet_rdma_cm_handler'
asked 'CM REJ recfmt 0 sts No Resources' 16 0 1 128 65535 0

step "id-ctrl, id-ns"
expect '^ioccsz: 1028' ./nvmf id-ctrl "$AT/$NQN"
expect '^nsze: 2097152' ./nvmf id-ns "$DISK"
BEFORE=$(resources)

dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
for key in region window; do
  step "write, read, compare and copy, by the key of a $key"
  run ./nvmf write "$DISK" --rdma-key $key --data /tmp/data
  run ./nvmf read "$DISK&rdma-key=$key" --data-size 8M --data /tmp/back
  cmp /tmp/data /tmp/back || fail "other data came back"
  run ./nvmf compare "$DISK" --rdma-key $key --data /tmp/data
  rm /tmp/back
  run ./nvmf copy /tmp/data "$DISK" --rdma-key $key --verify
  ./nvmf copy "$DISK" - --rdma-key $key --count 8M | cmp - /tmp/data || fail "other data were copied"
  run ./nvmf discard "$DISK" --rdma-key $key --start-block 0 --block-count 16384
  run ./nvmf flush "$DISK" --rdma-key $key
done

for inline in 16384 0; do
  unlisten 4420; listen 4420 $inline
  for key in region window; do
    step "bench --verify, $inline bytes in capsules, by the key of a $key"
    for bs in 4k 128k; do
      for depth in 1 32; do verified "$DISK" --rdma-key $key --bs $bs --iodepth $depth; done
    done
  done
done

step "bench --hipri --verify: queues that never sleep"
for bs in 4k 128k; do verified "$DISK" --hipri --bs $bs --iodepth 8; done

step "an NBD export of it, with a file system"
modprobe nbd
./nvmf export "$DISK" --nbd tcp:127.0.0.1:10809 >/tmp/exported 2>&1 & export=$!
until_true 20 grep -q . /tmp/exported
run nbd-client 127.0.0.1 10809 /dev/nbd0
file_system /dev/nbd0
run nbd-client -d /dev/nbd0
kill $export; wait $export || { cat /tmp/exported; fail "the export ended with status $?"; }

step "many connections by one thread"
run ./nvmf bench "$DISK" --rw randrw --connections 8 --controllers 2 --iodepth 4 --runtime 2 --eta never

step "without locked memory the error says what to do"
# In a namespace of its own even root has a limit.
limited() { unshare -U -r sh -c "ulimit -l $1; exec ./nvmf write '$DISK' --data /tmp/data"; }
refuse 'ulimit -l' limited 8
refuse 'ulimit -l' limited 64
run limited 8192

step "100 connects leave nothing behind"
for _ in $(seq 100); do ./nvmf read "$DISK" --data-size 4k --data - >/dev/null || fail "a read failed"; done
until_true 30 as_before

step "the port is removed and comes back under load"
dd if=/dev/urandom of=/tmp/long bs=1M count=96 2>/dev/null
./nvmf connect "$AT/$NQN" --watch --reconnect-delay 1 >/tmp/events 2>&1 & watch=$!
copy
unlisten 4420; sleep 2; listen 4420 16384
copy_passes
until_true 30 grep -q ' reconnected' /tmp/events
cat /tmp/events
kill -INT $watch; wait $watch || :

step "commands do not wait for longer than fast_io_fail_tmo says"
copy --fast_io_fail_tmo 2
unlisten 4420
! wait $copy || fail "the copy went on without its target"
cat /tmp/copied; grep -q 'fast_io_fail_tmo' /tmp/copied || fail "it does not say why"
listen 4420 16384

step "the link is deleted under load and made again"
allow 'nvmet_rdma: Removing queue'
copy
link_delete
unlisten 4420; link_add; listen 4420 16384
copy_passes
until_true 30 as_before

for inline in 4096 16384; do
  unlisten 4420; listen 4420 $inline
  step "how fast, $inline bytes in capsules"
  for bs in 512 4k 8k 16k 32k; do
    speed $inline randwrite $bs
    speed $inline randrw $bs --rwmixread 70
  done
done
unlisten 4420

step "our own target"
./nvmf target --nqn $NQN --listen rdma:$ADDRESS:4420 --ram 128M >/tmp/ready 2>/tmp/target & target=$!
until_true 20 grep -q . /tmp/ready
expect "^nvme\+rdma://$ADDRESS:4420/$NQN " ./nvmf discover $AT
run ./nvmf copy /tmp/data "$DISK" --verify
./nvmf copy "$DISK" - --count 8M | cmp - /tmp/data || fail "other data were copied"
for key in region window; do
  for bs in 4k 128k; do
    for depth in 1 32; do verified "$DISK" --rdma-key $key --bs $bs --iodepth $depth; done
  done
done
refuse 'offers: nqn' ./nvmf id-ctrl $AT/nqn.2024-01.test:other

step "requests for connections: our answers"
asked 'CM REP recfmt 0 crqsize 32' 16 0 0 32 31 0
asked 'CM REJ recfmt 0 sts Invalid RECFMT' 16 1 0 32 31 0
for qid in 129 65535; do asked 'CM REJ recfmt 0 sts Invalid QID' 16 0 $qid 128 127 0; done
for hsqsize in 0 32 65535; do asked 'CM REJ recfmt 0 sts Invalid HSQSIZE' 16 0 0 32 $hsqsize 0; done
for hsqsize in 0 65535; do asked 'CM REJ recfmt 0 sts Invalid HSQSIZE' 16 0 1 128 $hsqsize 0; done
asked 'CM REJ recfmt 0 sts Invalid HRQSIZE' 16 0 0 0 31 0
asked 'CM REJ recfmt 0 sts Invalid IRD' 0 0 0 32 31 0
asked 'CM REJ recfmt 0 sts Invalid CNTLID' 16 0 1 128 127 32767
# RoCE fills private data up with zeroes to 56 bytes: nothing is too short, but it may lack what is to be in it.
asked 'CM REP recfmt 0 crqsize 32' 16 0 0 32 31
asked 'CM REJ recfmt 0 sts Invalid HSQSIZE' 16 0 0 32
asked 'CM REJ recfmt 0 sts Invalid HSQSIZE' 16
# The QID of a queue that is connected.
queues() { grep -c 'connected.*qid=1 ' /tmp/target || :; }
another_queue() { [ "$(queues)" -gt "$before" ]; }
before=$(queues)
./nvmf connect "$AT/$NQN" --watch >/tmp/events 2>&1 & watch=$!
until_true 10 another_queue
cntlid=$(sed -n "s/.*connected.*cntlid=\([0-9]*\) qid=1 .*/\1/p" /tmp/target | tail -1)
[ "$cntlid" ] || { cat /tmp/target; fail "no CNTLID"; }
asked 'CM REJ recfmt 0 sts Invalid QID' 16 0 1 128 127 $cntlid
kill -INT $watch; wait $watch || :

step "our own target: the link is deleted under load and made again"
copy
link_delete; link_add
copy_passes
grep -q 'the RDMA device is gone' /tmp/target || fail "the target did not notice"
kill $target; wait $target || { cat /tmp/target; fail "the target ended with status $?"; }
