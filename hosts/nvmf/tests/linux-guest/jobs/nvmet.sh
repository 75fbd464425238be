# The kernel's own target: namespace 1 is memory, namespace 2 is /dev/vda.  Then obeys the outer machine, until that hangs up.
#   SHELL  the outer machine's port that commands come from
. ./lib.sh
nvmet=/sys/kernel/config/nvmet
subsystem=$nvmet/subsystems/$NQN
HARMLESS="$HARMLESS|nvmet: (adding nsid|creating (nvm|discovery) controller)|nvmet_tcp: enabling port"
HARMLESS="$HARMLESS|nvmet_tcp: queue [0-9]+ unhandled state 11"   # TCP_CLOSING: both ends close at once

# export_device NSID PATH [BUFFERED]: a block device becomes a namespace; or a file, with 1 by way of the page cache.
export_device() {
  local namespace=$subsystem/namespaces/$1
  mkdir "$namespace"
  echo -n "$2" >"$namespace/device_path"; echo "7e57ab1e-0000-4000-8000-00000000001$1" >"$namespace/device_uuid"
  echo "${3:-0}" >"$namespace/buffered_io"
  echo 1 >"$namespace/enable"
}
# listen ID PORT [INLINE]: a TCP port, which takes so many bytes of data in a capsule.
listen() {
  local port=$nvmet/ports/$1
  mkdir "$port"
  echo tcp >"$port/addr_trtype"; echo ipv4 >"$port/addr_adrfam"; echo 0.0.0.0 >"$port/addr_traddr"; echo "$2" >"$port/addr_trsvcid"
  [ -z "${3-}" ] || echo "$3" >"$port/param_inline_data_size"
  ln -s "$subsystem" "$port/subsystems/"
}

modprobe null_blk nr_devices=1 memory_backed=1 discard=1 gb=1 bs=4096
modprobe -a nvmet nvmet-tcp
mkdir "$subsystem"; echo 1 >"$subsystem/attr_allow_any_host"
export_device 1 /dev/nullb0
export_device 2 /dev/vda
listen 1 4420

# One line is one command, run by a shell of its own; its output ends with a line "@@DONE status".
mkfifo /tmp/answers
nc "$OUTER" "$SHELL" </tmp/answers | while read -r command; do
  ( eval "$command" ) </dev/null 2>&1 && rc=0 || rc=$?
  echo "@@DONE $rc"
done >/tmp/answers
