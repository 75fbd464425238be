# What nvmf-rdma's provider promises, on a software RDMA device of the kernel's.
#   DEVICE   rxe (RoCEv2) or siw (iWARP)
. ./lib.sh
HARMLESS="$HARMLESS|rdma_rxe: loaded"
ADDRESS=10.0.2.15

step "a $DEVICE device"
modprobe -a ib_uverbs rdma_ucm crc32_generic
run modprobe "$(case $DEVICE in rxe) echo rdma_rxe ;; *) echo "$DEVICE" ;; esac)"
run rdma link add "${DEVICE}0" type "$DEVICE" netdev eth0
expect "$DEVICE""0.*ACTIVE" rdma link
rdma resource show >/tmp/before

step "the contract of Verbs and Cm"
expect '^PASS receives that broken messages took are missed, and come back' ./contract $ADDRESS:4420 100

step "nothing is left of it"
rdma resource show >/tmp/after
cat /tmp/after
cmp /tmp/before /tmp/after || fail "resources differ from $(cat /tmp/before)"
