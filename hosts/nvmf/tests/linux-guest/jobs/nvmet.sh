# The kernel's own target, the known good peer: namespace 1 is memory, namespace 2 is /dev/vda.  Runs until killed.
. ./lib.sh
nvmet=/sys/kernel/config/nvmet
modprobe null_blk nr_devices=1 memory_backed=1 discard=1 gb=1 bs=4096
modprobe -a nvmet nvmet-tcp
mkdir "$nvmet/subsystems/$NQN"; echo 1 >"$nvmet/subsystems/$NQN/attr_allow_any_host"
export_device() {
  namespace=$nvmet/subsystems/$NQN/namespaces/$1; mkdir "$namespace"
  echo -n "$2" >"$namespace/device_path"; echo "7e57ab1e-0000-4000-8000-00000000001$1" >"$namespace/device_uuid"
  echo 1 >"$namespace/enable"
}
export_device 1 /dev/nullb0
export_device 2 /dev/vda
port=$nvmet/ports/1; mkdir $port
echo tcp >$port/addr_trtype; echo ipv4 >$port/addr_adrfam; echo 0.0.0.0 >$port/addr_traddr; echo 4420 >$port/addr_trsvcid
ln -s "$nvmet/subsystems/$NQN" $port/subsystems/
echo @@READY
sleep 100000
