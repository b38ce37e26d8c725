#!/usr/bin/env bash
# Runs scenarios under mpirun on hosts that are network namespaces of this machine, and compares their bits with a run on
# one host. Then puts delay and loss on the links, and cuts one in the middle of a run.
#
#   ci/network_hosts.sh [--full] [--bandwidth] [PROGRAM]     default: build/bin/lockstep
#
# --full takes all scenarios of six folders, and also runs them with every process of one machine as a host of its own.
# --bandwidth also measures collectives over links of 1 Gbit/s. Exits with 77, after the reason, where the machine does
# not permit it: it needs root, network namespaces, mpirun and a build with MPI.
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

full=false bandwidth=false program="$root/build/bin/lockstep"
for argument in "$@"; do
  case "$argument" in
    --full) full=true ;;
    --bandwidth) bandwidth=true ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
    *) program="$(realpath "$argument")" ;;
  esac
done

skip() {
  echo "skipped: $1"
  exit 77
}
[[ $(id -u) == 0 ]] || skip "network namespaces need root"
for tool in ip tc mpirun; do
  command -v "$tool" >/dev/null || skip "there is no $tool (ci/setup.sh --tests installs it)"
done
"$program" doctor 2>/dev/null | grep -q "Open MPI" || skip "this build has no MPI"

# Names of this process, so that two runs do not meet.
id=$(($$ % 200 + 20))
bridge="lsb$id" network="10.77.$id"
folder="$(mktemp -d)"
clean_up() {
  for i in 1 2 3; do ip netns del "ls$id-$i" 2>/dev/null; done
  ip link del "$bridge" 2>/dev/null
  rm -rf "$folder"
}
trap clean_up EXIT

make_hosts() {
  ip link add "$bridge" type bridge && ip addr add "$network.1/24" dev "$bridge" && ip link set "$bridge" up || return
  for i in 1 2 3; do
    ip netns add "ls$id-$i" && ip link add "lv$id-$i" type veth peer name eth0 netns "ls$id-$i" &&
      ip link set "lv$id-$i" master "$bridge" up && ip netns exec "ls$id-$i" ip addr add "$network.1$i/24" dev eth0 &&
      ip netns exec "ls$id-$i" ip link set eth0 up && ip netns exec "ls$id-$i" ip link set lo up || return
  done
  # What mpirun calls in place of ssh: enters the namespace, with a host name of its own.
  cat >"$folder/agent" <<AGENT
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done
number="\${1##*.1}"
shift
exec ip netns exec "ls$id-\$number" unshare --uts bash -c "hostname node\$number; \$*"
AGENT
  chmod +x "$folder/agent"
}
make_hosts 2>"$folder/log" || skip "network namespaces are not permitted here: $(tail -1 "$folder/log")"

# Every process of this machine is a host of its own.
on_processes() {
  LOCKSTEP_HOSTS=ranks timeout 1800 mpirun --allow-run-as-root --quiet --oversubscribe --bind-to none -n "$1" "${@:2}" \
    2>"$folder/stderr"
}
# on_hosts "SLOTS SLOTS ..." COMMAND...: one number of ranks per host.
on_hosts() {
  local slots="$1" hosts="" ranks=0 i=0
  shift
  for n in $slots; do
    i=$((i + 1))
    ranks=$((ranks + n))
    hosts+="${hosts:+,}$network.1$i:$n"
  done
  timeout 1800 mpirun --allow-run-as-root --quiet --oversubscribe --bind-to none --mca plm_rsh_agent "$folder/agent" \
    --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include "$bridge,eth0" --mca btl_tcp_if_include eth0 \
    --mca btl self,vader,tcp --host "$hosts" -n "$ranks" "$@" 2>"$folder/stderr"
}
on_links() {
  for i in 1 2 3; do ip netns exec "ls$id-$i" tc qdisc "$@" || return; done
}

failures=0
check() {
  if [[ $2 == 0 ]]; then
    echo "ok      $1"
  else
    echo "FAILED  $1"
    failures=$((failures + 1))
  fi
}

# same_bits RANKS RUNNER ARGUMENT SCENARIO...: every case of this many ranks passes there, with the bits of a plain run.
same_bits() {
  local ranks="$1" runner="$2" argument="$3"
  shift 3
  rm -rf "$folder/here" "$folder/there"
  "$program" run "$@" --case "world_size=$ranks" --progress never --trace-bits "$folder/here" >"$folder/here.log" 2>&1
  local here=$?
  "$runner" "$argument" "$program" run "$@" --case "world_size=$ranks" --progress never --color never \
    --trace-bits "$folder/there" >"$folder/there.log"
  local there=$?
  local compared
  compared="$("$program" compare --trace "$folder/here" "$folder/there" 2>&1 | tail -1)"
  # A case whose later stages have more ranks than there are processes is skipped.
  local skipped
  skipped="$(grep -ac '  it needs [0-9]* ranks, and' "$folder/there.log")"
  [[ $here == 0 && $there == 0 && $compared == *" 0 cases differ, $skipped missing" ]]
  check "$ranks ranks, $runner $argument: $compared" $?
  if [[ $there != 0 ]]; then grep -aA5 '^ *\(FAIL\|HANG\|CRASH\|MISSING\)' "$folder/there.log" | head -20; fi
}

if $full; then
  what=('replicate/*' 'training/*' 'state_dict/*' 'collectives/*' 'bits/*' 'golden/*')
else
  what=('replicate/*' 'golden/*' 'collectives/*')
fi
same_bits 2 on_hosts "1 1" "${what[@]}"
same_bits 4 on_hosts "2 2" "${what[@]}"
same_bits 8 on_hosts "3 3 2" "${what[@]}"
if $full; then
  for ranks in 2 4 8; do same_bits "$ranks" on_processes "$ranks" "${what[@]}"; done
fi

if on_links replace dev eth0 root netem delay 2ms loss 1% 2>"$folder/log"; then
  on_hosts "1 1" "$program" run 'replicate/*' --case world_size=2 --progress never >"$folder/slow.log"
  check "delay and loss change the time only" $?
  on_links del dev eth0 root
else
  echo "skipped delay and loss: $(head -1 "$folder/log") (this kernel has no netem)"
fi

# The link to the second host is cut while a collective waits. Every rank ends within the deadline.
cat >"$folder/long.yaml" <<'SCENARIO'
scenario: long
summary: Many collectives, one after the other.
ranks: {world_size: 2}
timeout: 120
steps:
  - let: {x: "ones(4)"}
  - repeat: 2000000
    steps:
      - all_reduce: {tensor: x, op: max}
  - expect_equal: [x, "ones(4)"]
SCENARIO
programs_on_hosts() {
  for i in 1 2; do
    for pid in $(ip netns pids "ls$id-$i"); do [[ $(readlink "/proc/$pid/exe") != "$program" ]] || echo "$pid"; done
  done
}
on_hosts "1 1" "$program" run "$folder/long.yaml" --progress never --color never >"$folder/cut.log" &
mpirun_of_cut=$!
sleep 6
running="$(programs_on_hosts | wc -l)"
ip link set "lv$id-2" down
begin=$SECONDS
while [[ -n $(programs_on_hosts) && $((SECONDS - begin)) -lt 40 ]]; do sleep 0.5; done
took=$((SECONDS - begin))
# mpirun itself cannot know that its other end is gone.
pkill -P "$mpirun_of_cut" 2>/dev/null
kill "$mpirun_of_cut" 2>/dev/null
wait "$mpirun_of_cut" 2>/dev/null
text="$(grep -ao 'rank 1 died: its host.*' "$folder/cut.log" | head -1)"
[[ $running -ge 4 && $took -lt 20 && $text == *"Rank 0 waits in all_reduce"* ]]
check "a cut link ends launchers and ranks ($running processes, after $took s): ${text:0:160}" $?
ip link set "lv$id-2" up

if $bandwidth; then
  on_links replace dev eth0 root tbf rate 1gbit burst 256kb latency 50ms || echo "this kernel limits no rate: figures are of the bare link"
  on_hosts "1 1" "$program" bench collectives --world-size 2
fi

((failures == 0))
