# Two guests on a wire, each with rdma_rxe: `ours` runs `nvmf target`, then our host; `linux` has the kernel's host and target.
# All that passes is captured, and tshark reads it.
#   SIDE   ours or linux
. ./lib.sh
HARMLESS="$HARMLESS|rdma_rxe: loaded|null_blk: disk nullb0 created|nvmet: (adding nsid|creating (nvm|discovery) controller)"
HARMLESS="$HARMLESS|nvmet_rdma: (enabling|disabling) port"
OURS=192.168.77.1 LINUX=192.168.77.2 NQN=nqn.2024-01.test:rdma NAMESPACES=2
OUTER=$OURS PORT=4420 TRANSPORT=rdma

# meet NUMBER: both sides wait until the other has come as far. The first to fail keeps the other waiting until it gives up.
meet() {
  case $SIDE in
    ours) timeout 150 nc -l -p "90$1" </dev/null || fail "the other side did not come to $1" ;;
    linux) until_true 150 arrived "$1" ;;
  esac
}
arrived() { nc -w 5 $OURS "90$1" </dev/null 2>/dev/null; }
device_up() {
  modprobe -a ib_uverbs rdma_ucm crc32_generic
  run modprobe rdma_rxe
  ip addr add "$1/24" dev eth1
  ip link set eth1 mtu 5000 up   # for messages of 4096 bytes in one packet: tshark takes each packet of a log page for the whole
  run rdma link add rxe0 type rxe netdev eth1
}

ours() {
  AT=nvme+rdma://$LINUX DISK="nvme+rdma://$LINUX/$NQN?nsid=1"
  step "ours: a device on the wire, and our target on it"
  device_up $OURS
  ./nvmf target --nqn $NQN --listen rdma:$OURS:4420 --ram 64M --file "/tmp/disk,size=64M,bs=4096" \
    --rdma-inline-data 4K >/tmp/ready 2>/tmp/target & target=$!
  until_true 20 grep -qs . /tmp/ready
  meet 01
  meet 02
  kill $target; wait $target || { cat /tmp/target; fail "the target ended with status $?"; }

  step "our host and the kernel's target, over a wire"
  meet 03
  expect "^nvme\+rdma://$LINUX:4420/$NQN " ./nvmf discover $AT
  expect '^ioccsz: 1028' ./nvmf id-ctrl "$AT/$NQN"
  dd if=/dev/urandom of=/tmp/data bs=256k count=4 2>/dev/null
  run ./nvmf write "$DISK" --data /tmp/data
  run ./nvmf read "$DISK" --data-size 1M --data /tmp/back
  cmp /tmp/data /tmp/back || fail "other data came back"
  for bs in 2k 4k 128k; do
    expect 'read back what was written: the same' ./nvmf bench "$DISK" --rw randwrite --bs $bs --size 1M --iodepth 4 --verify --eta never
  done
  meet 04
}

linux() {
  step "linux: a device on the wire, and the kernel's target on it"
  device_up $LINUX
  modprobe null_blk nr_devices=1 memory_backed=1 gb=1 bs=512
  modprobe -a nvme-rdma nvmet nvmet-rdma
  nvmet=/sys/kernel/config/nvmet subsystem=/sys/kernel/config/nvmet/subsystems/$NQN
  mkdir $subsystem; echo 1 >$subsystem/attr_allow_any_host
  mkdir $subsystem/namespaces/1
  echo -n /dev/nullb0 >$subsystem/namespaces/1/device_path; echo 1 >$subsystem/namespaces/1/enable
  mkdir $nvmet/ports/1; cd $nvmet/ports/1
  echo rdma >addr_trtype; echo ipv4 >addr_adrfam; echo $LINUX >addr_traddr; echo 4420 >addr_trsvcid; echo 16384 >param_inline_data_size
  ln -s $subsystem subsystems/
  cd /job

  meet 01
  step "the kernel's host and our target, over a wire"
  run nvme discover -t rdma -a $OURS -s 4420
  connect --nr-io-queues=2
  for n in 1 2; do
    D=$(device $n)
    for block in $([ $n = 2 ] || echo 2k) 4k 16k 128k; do   # in a capsule of one packet, of two, and above what goes in capsules
      run dd if=/dev/urandom of=/tmp/pattern bs=$block count=8
      run dd if=/tmp/pattern of="$D" bs=$block oflag=direct
      dd if="$D" bs=$block count=8 iflag=direct 2>/dev/null | cmp - /tmp/pattern || fail "other data came back"
    done
    fio --name=verify --filename="$D" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bsrange=4k-128k --size=2m \
      --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio 2>&1 || { cat /tmp/fio; fail "verify"; }
    grep -E 'IOPS=|err=' /tmp/fio
  done
  disconnect
  meet 02
  meet 03
  meet 04
}

$SIDE
