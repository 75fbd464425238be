# Sourced by every job, as `. ./lib.sh`; the job's arguments, KEY=VALUE each, become variables.
#   PORT     the target's TCP port on the outer machine        CONTROL  the driver's port (see `outer`)
#   NQN      the subsystem                                     PEER     nvmf (ours) or nvmet (the kernel's own)
# A step passes when the next one begins or the job ends, if no command failed and the kernel log is clean.
set -eu
for pair; do export "${pair?}"; done
OUTER=10.0.2.2 STEP='' ALLOWED='' CTRL=''

# Lines of the kernel log that are looked at, and those of them that tell of no fault.
WATCHED='nvme|EXT4-fs|JBD2|I/O error|critical|BUG|WARNING|Oops|Call Trace|blocked for more'
HARMLESS='nvme nvme[0-9]+: (new ctrl: NQN|creating [0-9]+ I/O queues|mapped [0-9/]+ default/read/poll queues|queue_size [0-9]+ > ctrl (sqsize|maxcmd) [0-9]+, clamping down|Removing ctrl: NQN)'
HARMLESS="$HARMLESS|EXT4-fs \(nvme[0-9n]+\): (mounted|unmounting) filesystem"

now() { cut -d' ' -f1 /proc/uptime; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.2f", b - a }'; }
fail() { echo "reason: $*"; exit 1; }
figure() { echo "FIGURE $*"; }

# step HEADING: begins a step.
step() { close_step; STEP=$*; ALLOWED=''; echo "## [$(now)] $*"; }
close_step() {
  [ -z "$STEP" ] || { check_kernel_log; echo "PASS $STEP"; }
  STEP=''
}
# allow REGEX: kernel log lines that belong to the current step.
allow() { ALLOWED="${ALLOWED}|$1"; }
check_kernel_log() {
  dmesg -c >/tmp/dmesg
  ! grep -E "$WATCHED" /tmp/dmesg | grep -vE "$HARMLESS$ALLOWED" || fail "the kernel complained"
}
at_exit() {
  rc=$?; trap - EXIT; set +e
  [ $rc != 0 ] || { (close_step); rc=$?; }
  [ $rc = 0 ] || { dmesg | tail -20; echo "FAIL ${STEP:-before the first step} (status $rc)"; }
  exit $rc
}
trap at_exit EXIT

# run COMMAND...: shows the command and what it prints.
run() { echo "+ $*"; "$@" >/tmp/out 2>&1 || { rc=$?; cat /tmp/out; fail "$1 gave status $rc"; }; cat /tmp/out; }
# expect REGEX COMMAND...: run, and the output must match.
expect() { local regex=$1; shift; run "$@"; grep -qE -- "$regex" /tmp/out || fail "no /$regex/ in the output"; }
# refuse REGEX COMMAND...: the command must fail and say so.
refuse() {
  local regex=$1; shift; echo "+ (refused) $*"
  ! "$@" >/tmp/out 2>&1 || { cat /tmp/out; fail "should have failed"; }
  cat /tmp/out; grep -qE -- "$regex" /tmp/out || fail "no /$regex/ in the output"
}
# until_true SECONDS COMMAND...: waits for a condition.
until_true() {
  local limit=$1 since; shift; since=$(now)
  until "$@"; do [ "$(since "$since" | cut -d. -f1)" -lt "$limit" ] || fail "not within $limit s: $*"; usleep 100000; done
}

# outer REQUEST...: asks the driver on the outer machine; prints its answer.
outer() {
  local answer; answer=$(echo "$*" | nc "$OUTER" "$CONTROL"); echo "outer: $* -> $answer" >&2
  case $answer in ok*) echo "${answer#ok}" | sed 's/^ //' ;; *) fail "outer: $*" ;; esac
}

# connect [OPTION...]: connects to NQN, by TCP at OUTER unless options say otherwise; sets CTRL (nvme0), and waits until
# as many namespaces as NAMESPACES says have come up.
connect() {
  run nvme connect -t "${TRANSPORT:-tcp}" -a "$OUTER" -s "$PORT" -n "$NQN" "$@"
  CTRL=$(sed -n 's/^device: //p' /tmp/out); [ "$CTRL" ] || CTRL=$(newest_controller)
  until_true 10 has_namespaces
}
disconnect() { expect 'disconnected 1 controller' nvme disconnect -n "$NQN"; CTRL=''; }
newest_controller() { for c in /sys/class/nvme/nvme*; do basename "$c"; done | sort -V | tail -1; }
has_namespaces() { for n in $(seq "${NAMESPACES:-1}"); do [ "$(device "$n")" ] || return 1; done; }
# device NSID: the block device of a namespace (their numbers need not agree with the NSID).
device() {
  for b in /sys/block/nvme*n*; do
    case $b in */nvme*c*n*) continue ;; esac
    [ "$(cat "$b/nsid" 2>/dev/null)" != "$1" ] || { echo "/dev/$(basename "$b")"; return; }
  done
}
io_queues() { echo $(($(cat "/sys/class/nvme/$CTRL/queue_count") - 1)); }
state_is() { [ "$(cat "/sys/class/nvme/$CTRL/state" 2>/dev/null)" = "$1" ]; }

# file_system DEVICE: what is written must read back after the caches were dropped.
file_system() {
  run mkfs.ext4 -q -F "$1"; mount "$1" /mnt
  mkdir /mnt/d; head -c 12000000 /dev/urandom >/mnt/d/data; cp /mnt/d/data /mnt/copy
  sum=$(md5sum </mnt/d/data); sync; umount /mnt; echo 3 >/proc/sys/vm/drop_caches
  mount "$1" /mnt
  for f in /mnt/d/data /mnt/copy; do [ "$(md5sum <$f)" = "$sum" ] || fail "$f reads back differently"; done
  rm /mnt/copy; run fstrim -v /mnt; umount /mnt
}

# verified DEVICE QUEUES: one thread per queue writes at random, then reads back and checks each block.
verified() {
  each=$((32 / $2))
  fio --name=verify --filename="$1" --direct=1 --ioengine=libaio --iodepth=16 --thread --numjobs="$2" \
    --rw=randwrite --bsrange=4k-128k --size=${each}m --offset_increment=${each}m --fsync=64 \
    --cpus_allowed=0-$(($2 - 1)) --cpus_allowed_policy=split \
    --verify=crc32c --do_verify=1 --verify_fatal=1 --group_reporting >/tmp/fio 2>&1 || { cat /tmp/fio; fail "verify"; }
  grep -E 'IOPS=|err=' /tmp/fio
}

# speed DEVICE WAY RW BLOCK DEPTH
speed() {
  run fio --name=speed --filename="$1" --direct=1 --ioengine=libaio --rw="$3" --bs="$4" --iodepth="$5" --runtime=2 --time_based \
    --output-format=terse --terse-version=3 >/dev/null
  figure "$3 $4 depth $5, $2: $(awk -F';' '{ printf "%d IOPS, %.1f MiB/s", $8 + $49, ($7 + $48) / 1024 }' /tmp/out)"
}

modprobe -a nvme-tcp ext4 crc32c_generic crc32c-intel
nqn=nqn.2014-08.org.nvmexpress:uuid:7e57ab1e-0000-4000-8000-000000000001
echo $nqn >/etc/nvme/hostnqn; echo "${nqn##*:}" >/etc/nvme/hostid
