# shellcheck shell=bash
# Starting the daemons of a Slurm site without an init; read by entry and by make-accounts.

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS >= end)); then
            echo "gave up waiting for: $*" >&2
            return 1
        fi
        sleep 0.05
    done
}

start_munge() {
    install -d -o munge -g munge -m 0755 /run/munge
    runuser -u munge -- /usr/sbin/munged
}

start_mariadb() {
    install -d -o mysql -g mysql /run/mysqld
    runuser -u mysql -- /usr/sbin/mariadbd > /var/log/mariadb.log 2>&1 &
    wait_for 120 mariadb -e 'select 1'
}

start_slurmdbd() {
    runuser -u slurm -- /usr/sbin/slurmdbd
    # Its first start makes the tables, which takes long on a slow disk.
    if ! wait_for 120 bash -c '! pgrep -x slurmdbd || : < /dev/tcp/localhost/6819' ||
        ! pgrep -x slurmdbd > /dev/null; then
        tail -n 20 /var/log/slurm/slurmdbd.log >&2
        return 1
    fi
}

# start_slurmctld: until it answers; it gives up on a bad configuration only after going to the background.
start_slurmctld() {
    /usr/sbin/slurmctld
    until scontrol ping > /dev/null 2>&1; do
        if ! pgrep -x slurmctld > /dev/null; then
            grep -E 'error|fatal' /var/log/slurm/slurmctld.log >&2
            return 1
        fi
        sleep 0.05
    done
}
