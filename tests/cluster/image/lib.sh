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

# authenticate AUTHTYPE: start what proves users to Slurm: munged, or nothing but Slurm's own key.
authenticate() {
    local files=(/etc/slurm/slurmdbd.conf)
    case $1 in
    auth/munge) start_munge ;;
    auth/slurm)
        # Done over where a container is started again.
        [[ ! -e /etc/slurm/slurm.conf ]] || files+=(/etc/slurm/slurm.conf)
        sed -i '/^CredType=/d; s|^AuthType=.*|AuthType=auth/slurm|' "${files[@]}"
        [[ ! -e /etc/slurm/slurm.conf ]] || echo CredType=auth/slurm >> /etc/slurm/slurm.conf
        # Each daemon has a socket of its own there; that of slurmd belongs to root.
        install -d -o slurm -g slurm /run/slurmctld /run/slurmdbd
        [[ ${role:-} != @(node|all) ]] || chown root /run/slurm
        install -d /etc/ones/ones.d
        echo 'auth_type = "auth/slurm"' > /etc/ones/ones.d/auth.toml
        ;;
    *)
        echo "no authentication '$1'; auth/munge or auth/slurm" >&2
        return 2
        ;;
    esac
}

start_munge() {
    install -d -o munge -g munge -m 0755 /run/munge
    runuser -u munge -- /usr/sbin/munged
}

start_mariadb() {
    install -d -o mysql -g mysql /run/mysqld
    runuser -u mysql -- /usr/sbin/mariadbd > /var/log/mariadb.log 2>&1 &
    wait_for 30 mariadb -e 'select 1'
}

start_slurmdbd() {
    runuser -u slurm -- /usr/sbin/slurmdbd
    answers slurmdbd bash -c ': < /dev/tcp/localhost/6819'
}

start_slurmctld() {
    /usr/sbin/slurmctld
    answers slurmctld scontrol ping
}

# answers DAEMON COMMAND...: wait until the command succeeds. The daemon gives up on a bad
# configuration or database only after going to the background: then what it logged is shown.
answers() {
    local daemon=$1 end=$((SECONDS + 120))
    shift
    until "$@" > /dev/null 2>&1; do
        if ((SECONDS >= end)) || ! pgrep -x "$daemon" > /dev/null; then
            grep -E 'error|fatal' "/var/log/slurm/$daemon.log" >&2
            return 1
        fi
        sleep 0.05
    done
}
