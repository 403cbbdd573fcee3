#!/usr/bin/env bash
# A real Slurm cluster of N virtual nodes on this one machine, to try and to test what runs on clusters.
#
#   slurm/virtual_cluster.sh start N [CPUS]    N nodes (n1 ... nN) of CPUS processors each [2]
#   slurm/virtual_cluster.sh exec CMD...       run CMD on its login node: sbatch, srun, squeue, a shell ...
#   slurm/virtual_cluster.sh on NODE CMD...    run CMD on a node, past Slurm
#   slurm/virtual_cluster.sh kill-node NODE    cut its power: slurmd and all that runs on it die at once
#   slurm/virtual_cluster.sh boot-node NODE    bring it back
#   slurm/virtual_cluster.sh shape RATE|off [NODE]    limit a node's link, both ways, e.g. 100mbit [every node]
#   slurm/virtual_cluster.sh cpu CORES|off [NODE]     limit a node's processor, e.g. 0.4 of a core [every node]
#   slurm/virtual_cluster.sh status            the daemons' view; exit code 0: every node is up
#   slurm/virtual_cluster.sh stop              end it, and everything in it
#
# Each node has its own network, host name, process table and /dev/shm; files are shared, as on a cluster.
# The state is in $VIRTUAL_CLUSTER [/tmp/scaleprof-cluster-UID]: several clusters can be up at once.
# $VIRTUAL_CLUSTER_OWNER: a process id; the cluster ends with that process.
# Needs root and: apt-get install --no-install-recommends slurm-wlm munge libpmi2-0 iproute2
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
SELF=$(readlink -f "$0")
HOME_DIR=${VIRTUAL_CLUSTER:-${TMPDIR:-/tmp}/scaleprof-cluster-$UID}
NET=10.77.0 # the head is .1, node i is .(i+1); private to the cluster's own network namespaces
export SLURM_CONF=$HOME_DIR/slurm.conf

help() { sed -n '2,${/^\(#SBATCH\|[^#]\)/q;s/^# \{0,1\}//p}' "$SELF"; }
die() { echo "virtual_cluster.sh: $*" >&2; exit 1; }

# --- machines: namespaces whose first process waits; when it dies, the kernel kills all that is in them ----

# Alive exactly as long as its first process holds this lock: no process id can be mistaken for another.
alive() { [[ -e $HOME_DIR/machines/$1 ]] && ! flock -n "$HOME_DIR/machines/$1" true; }

machine_pid() { alive "$1" || die "$1 is not up"; cat "$HOME_DIR/machines/$1.pid"; }

inside() { # MACHINE CMD...
    local pid; pid=$(machine_pid "$1"); shift
    nsenter --target "$pid" --net --uts --mount --pid --wdns="$PWD" -- "$@"
}

power_on() { # MACHINE [MACHINE it lives in: it dies with that one]
    local enter=() name=$1
    [[ -z ${2:-} ]] || enter=(nsenter --target "$(machine_pid "$2")" --pid --)
    rm -f "$HOME_DIR/machines/$name".{pid,ready}
    setsid "${enter[@]}" unshare --net --uts --mount --propagation private --pid --fork --kill-child \
        bash "$SELF" _machine "$name" </dev/null >>"$HOME_DIR/log/$name.out" 2>&1 &
    for _ in {1..1500}; do [[ ! -e $HOME_DIR/machines/$name.ready ]] || return 0; sleep .02; done
    die "$name did not start; see $HOME_DIR/log/$name.out"
}

_machine() { # the first process of a machine
    exec 9>"$HOME_DIR/machines/$1"
    flock -n 9 || die "$1 is up already"
    # While /proc still shows the outside: our process id as seen from there (awk's parent is this shell).
    awk '/^PPid:/ { print $2 }' /proc/self/status >"$HOME_DIR/machines/$1.pid"
    mount -t proc proc /proc
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mount --bind "$HOME_DIR/hosts" /etc/hosts
    hostname "$1"
    ip link set lo up
    : >"$HOME_DIR/machines/$1.ready"
    while :; do sleep 3600 & wait $!; done # a shell that waits also reaps orphans
}

power_off() { # MACHINE
    alive "$1" || return 0
    kill -KILL "$(machine_pid "$1")"
    for _ in {1..250}; do alive "$1" || return 0; sleep .02; done
    die "$1 does not die"
}

daemon() { # MACHINE CMD...: in the background, until its machine dies
    local machine=$1; shift
    (
        [[ ! -d $(cpu_group "$machine") ]] || echo "$BASHPID" >"$(cpu_group "$machine")/cgroup.procs"
        exec setsid nsenter --target "$(machine_pid "$machine")" --net --uts --mount --pid -- "$@"
    ) </dev/null >>"$HOME_DIR/log/${1##*/}-$machine.out" 2>&1 &
}

# --- the cluster -------------------------------------------------------------------------------------------

nodes() { seq -f n%g "$(cat "$HOME_DIR/size")"; }

check_node() { # NODE
    alive head || die "no cluster is up in $HOME_DIR"
    nodes | grep -qxF -- "${1:-}" || die "no node '${1:-}'; there are n1 to n$(cat "$HOME_DIR/size")"
}

write_configuration() { # N CPUS
    local i binding=affinity
    # Tasks cannot be bound to processors that this machine does not have.
    (($2 <= $(nproc --all))) || binding=none
    {
        echo "127.0.0.1 localhost"
        echo "$NET.1 head"
        for ((i = 1; i <= $1; i++)); do echo "$NET.$((i + 1)) n$i"; done
    } >"$HOME_DIR/hosts"
    echo CgroupAutomount=no >"$HOME_DIR/cgroup.conf"
    # Limits and time-outs are short, so that what takes minutes on a cluster takes seconds here.
    cat >"$SLURM_CONF" <<CONF
ClusterName=virtual
SlurmctldHost=head($NET.1)
SlurmUser=root
AuthType=auth/munge
# A requeued job starts again when its old credential has expired.
AuthInfo=socket=$HOME_DIR/munge/socket,cred_expire=5
StateSaveLocation=$HOME_DIR/state
SlurmdSpoolDir=$HOME_DIR/spool/%n
SlurmctldPidFile=$HOME_DIR/run/slurmctld.pid
SlurmdPidFile=$HOME_DIR/run/slurmd-%n.pid
SlurmctldLogFile=$HOME_DIR/log/slurmctld.log
SlurmdLogFile=$HOME_DIR/log/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/$binding
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=2,batch_sched_delay=0,kill_invalid_depend
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
# With many nodes it takes this machine a while to let each answer.
MessageTimeout=$((5 + $1 / 2))
KillWait=15
CompleteWait=0
MinJobAge=3600
# What can never run is refused when it is submitted.
EnforcePartLimits=ALL
UnkillableStepTimeout=30
TreeWidth=64
NodeName=DEFAULT CPUs=$2 Sockets=1 CoresPerSocket=$2 ThreadsPerCore=1 RealMemory=64000
$(for ((i = 1; i <= $1; i++)); do echo "NodeName=n$i NodeAddr=$NET.$((i + 1))"; done)
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60
CONF
}

start() {
    [[ ${1:-} =~ ^[0-9]+$ ]] || die "how many nodes? slurm/virtual_cluster.sh start N [CPUS]"
    local count=$1 cpus=${2:-2} name booting=()
    ((UID == 0)) || die "needs root, for network namespaces"
    for name in slurmctld slurmd munged srun ip tc unshare nsenter flock; do
        command -v "$name" >/dev/null || die "no $name: apt-get install slurm-wlm munge libpmi2-0 iproute2"
    done
    ((count >= 1 && count <= 250)) || die "1 to 250 nodes, not $count"
    ! alive head || die "a cluster is up in $HOME_DIR; stop it first, or set VIRTUAL_CLUSTER"
    rm -rf "$HOME_DIR"
    mkdir -p "$HOME_DIR"/{machines,log,run,state,spool,munge}
    chmod 755 "$HOME_DIR" "$HOME_DIR/munge"
    echo "$count" >"$HOME_DIR/size"
    write_configuration "$count" "$cpus"
    # All networks of a kernel share one table of neighbours, of 1,024 by default: 32 nodes that all know each other fill
    # it, and connections then fail with "No route to host".
    local neighbours=/proc/sys/net/ipv4/neigh/default/gc_thresh3 pairs=$((4 * count * count))
    (($(cat $neighbours) >= pairs)) || echo $pairs >$neighbours || die "no room for the addresses of $count nodes"
    (umask 077 && head -c 128 /dev/urandom >"$HOME_DIR/munge/key")

    power_on head
    [[ -z ${VIRTUAL_CLUSTER_OWNER:-} ]] || end_with "$VIRTUAL_CLUSTER_OWNER"
    inside head sh -c "ip link add bridge0 type bridge; ip addr add $NET.1/24 dev bridge0; ip link set bridge0 up"
    # --force: a directory above may be root's alone, and so is this cluster.
    daemon head munged --foreground --force --key-file="$HOME_DIR/munge/key" --socket="$HOME_DIR/munge/socket" \
        --pid-file="$HOME_DIR/run/munged.pid" --log-file="$HOME_DIR/munge/log" \
        --seed-file="$HOME_DIR/munge/seed" --num-threads=4
    for _ in {1..250}; do [[ ! -S $HOME_DIR/munge/socket ]] || break; sleep .02; done
    [[ -S $HOME_DIR/munge/socket ]] || die "munged did not start; see $HOME_DIR/log/munged-head.out"
    daemon head slurmctld -D
    for name in $(nodes); do
        boot_node "$name" &
        booting+=($!)
    done
    wait "${booting[@]}"
    wait_until_up
    name=$(nodes | xargs)
    ((count <= 3)) || name="n1 ... n$count"
    echo "virtual nodes are up: $name; a shell on their login node: slurm/virtual_cluster.sh exec bash"
}

boot_node() { # NODE
    local pid number=${1#n}
    power_on "$1" head
    pid=$(machine_pid "$1")
    # The kernel removes a dead node's cable in its own time: it may still be there.
    on_bridge ip link del "veth$number" 2>/dev/null || true
    # From the network of the head, with the outside's process ids.
    on_bridge ip link add "veth$number" type veth peer name eth0 netns "$pid"
    on_bridge ip link set "veth$number" master bridge0 up
    inside "$1" sh -c "ip addr add $NET.$((number + 1))/24 dev eth0; ip link set eth0 up"
    [[ ! -e $HOME_DIR/rate ]] || shape_node "$1" "$(cat "$HOME_DIR/rate")"
    [[ ! -e $HOME_DIR/cores ]] || limit_cpu "$1" "$(cat "$HOME_DIR/cores")"
    daemon "$1" slurmd -D -N "$1"
}

on_bridge() { nsenter --target "$(machine_pid head)" --net -- "$@"; }

shape_node() { # NODE RATE|off
    local veth=veth${1#n} limit=(tbf rate "$2" burst 64kb latency 100ms)
    if [[ $2 == off ]]; then
        on_bridge tc qdisc del dev "$veth" root 2>/dev/null || true # it had no limit
        inside "$1" tc qdisc del dev eth0 root 2>/dev/null || true
    else
        on_bridge tc qdisc replace dev "$veth" root "${limit[@]}"
        inside "$1" tc qdisc replace dev eth0 root "${limit[@]}"
    fi
}

shape() { # RATE|off [NODE, until it boots]
    local name
    # Without a unit tc takes it for bits per second.
    [[ $1 == off || $1 =~ ^[0-9.]+[kmg]?bit$ ]] || die "a rate with its unit, e.g. 100mbit, or off; not $1"
    [[ -z ${2:-} ]] || { check_node "$2"; shape_node "$2" "$1"; return; }
    for name in $(nodes); do ! alive "$name" || shape_node "$name" "$1"; done
    if [[ $1 == off ]]; then rm -f "$HOME_DIR/rate"; else echo "$1" >"$HOME_DIR/rate"; fi
}

cpu_group() { # NODE: the control group that limits its processor (version 1 or 2)
    local root=/sys/fs/cgroup
    [[ -e $root/cgroup.controllers ]] || root=$root/cpu
    echo "$root/scaleprof${HOME_DIR//\//-}-$1"
}

# Nodes that share the machine's cores slow each other down; with a share each, all are as fast as one alone.
limit_cpu() { # NODE CORES|off
    local group pid quota=-1
    group=$(cpu_group "$1")
    [[ ! -e /sys/fs/cgroup/cgroup.subtree_control ]] || echo +cpu >/sys/fs/cgroup/cgroup.subtree_control || true
    mkdir -p "$group" || true
    [[ -e $group/cpu.max || -e $group/cpu.cfs_quota_us ]] || die "no control groups for processors on this machine"
    # In 5 ms: a rank that has used up its share waits for a few milliseconds at most.
    [[ $2 == off ]] || quota=$(awk -v cores="$2" 'BEGIN { if (cores + 0 < 0.2) exit 1; print int(cores * 5000) }') ||
        die "0.2 of a core or more, not $2"
    # The share is the node's own: what else the machine does comes after it.
    if [[ -e $group/cpu.max ]]; then
        echo "${quota/#-1/max} 5000" >"$group/cpu.max"
        echo 10000 >"$group/cpu.weight"
    else
        echo 5000 >"$group/cpu.cfs_period_us"
        echo "$quota" >"$group/cpu.cfs_quota_us"
        echo 262144 >"$group/cpu.shares"
    fi
    for pid in $(pgrep --ns "$(machine_pid "$1")" --nslist pid .); do
        echo "$pid" >"$group/cgroup.procs" 2>/dev/null || true # it ended
    done
}

cpu() { # CORES|off [NODE, until it boots]
    local name
    [[ -z ${2:-} ]] || { check_node "$2"; limit_cpu "$2" "$1"; return; }
    for name in $(nodes); do ! alive "$name" || limit_cpu "$name" "$1"; done
    if [[ $1 == off ]]; then rm -f "$HOME_DIR/cores"; else echo "$1" >"$HOME_DIR/cores"; fi
}

stop() {
    local name group said="the virtual cluster in $HOME_DIR has ended"
    alive head || said="no virtual cluster is up in $HOME_DIR"
    power_off head
    [[ -e $HOME_DIR/size ]] || { echo "$said"; return; }
    for name in $(nodes); do
        group=$(cpu_group "$name")
        # The last processes of a node may still be ending.
        for _ in {1..250}; do [[ -d $group ]] && ! rmdir "$group" 2>/dev/null || break; sleep .02; done
    done
    echo "$said"
}

all_up() { [[ $(inside head sinfo -h -N -o %T 2>/dev/null | grep -cE '^(idle|mixed|allocated|completing)$') == "$1" ]]; }

wait_until_up() {
    local count; count=$(cat "$HOME_DIR/size")
    for _ in {1..900}; do ! all_up "$count" || return 0; sleep .1; done
    inside head sinfo -N >&2 || true
    die "not all nodes came up; see $HOME_DIR/log"
}

end_with() { # PROCESS ID: end this cluster, and no later one in its place, with that process
    VIRTUAL_CLUSTER=$HOME_DIR setsid "$SELF" _watch "$1" "$(machine_pid head)" </dev/null >/dev/null 2>&1 &
}

_watch() { # PROCESS ID, PROCESS ID OF THE HEAD
    tail --pid="$1" -f /dev/null
    [[ $(cat "$HOME_DIR/machines/head.pid") != "$2" ]] || power_off head
}

status() {
    alive head || die "no cluster is up in $HOME_DIR"
    inside head sinfo -N -o '%N %T %C %E'
    all_up "$(cat "$HOME_DIR/size")"
}

command=${1:-}; shift || true
case $command in
start) start "$@" ;;
stop) stop ;;
status) status ;;
exec) inside head "$@" ;;
on) inside "$@" ;;
kill-node) check_node "$@"; power_off "$1" ;;
boot-node) check_node "$@"; boot_node "$1" ;;
shape) shape "${1:?RATE or off}" "${2:-}" ;;
cpu) cpu "${1:?CORES or off}" "${2:-}" ;;
_machine | _watch) "$command" "$@" ;;
-h | --help) help ;;
*) help >&2; exit 2 ;;
esac
