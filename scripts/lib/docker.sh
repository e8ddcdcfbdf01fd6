# shellcheck shell=bash
# A docker engine to talk to, installed and started where this machine allows it.

# die LINE: end with one line for the person at the terminal.
die() {
    echo "${0##*/}: error: $*" >&2
    exit 1
}

# say LINE: progress, kept off standard output.
say() { echo "${0##*/}: $*" >&2; }

on_debian_as_root() { ((EUID == 0)) && [[ -e /etc/debian_version ]] && command -v apt-get > /dev/null; }

# apt_install PACKAGE...: quietly, with the log shown only when it fails; one call after the other,
# because scripts/test prepares the machine and builds the image at once.
apt_install() {
    local log
    log=$(mktemp)
    # shellcheck disable=SC2016 # the inner bash has arguments of its own
    if ! DEBIAN_FRONTEND=noninteractive flock --close /run/lock/ones-apt.lock bash -c '
        apt-get update -qq && apt-get install -qq -y --no-install-recommends \
            -o Dpkg::Options::=--force-unsafe-io "$@"' bash "$@" > "$log" 2>&1 < /dev/null; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        die "apt-get could not install $*"
    fi
    rm -f "$log"
}

# ensure_docker: return with a docker engine that answers.
ensure_docker() {
    docker info > /dev/null 2>&1 && return
    if ! command -v dockerd > /dev/null; then
        on_debian_as_root || die "no docker engine answers; install Docker Engine and start it, or run this as root on Debian"
        say "no docker engine here: installing docker.io and mmdebstrap with apt-get"
        apt_install docker.io iptables mmdebstrap debian-archive-keyring
        # Newer Debian releases ship the command line in a package of its own.
        command -v docker > /dev/null || apt_install docker-cli
        docker info > /dev/null 2>&1 && return
    fi
    ((EUID == 0)) || die "the docker engine does not answer; start it (systemctl start docker) or run this as root"
    start_dockerd
}

start_dockerd() {
    local log=/var/log/ones-dockerd.log pid
    if [[ -d /run/systemd/system ]]; then
        say "starting docker.service"
        systemctl start docker
        docker info > /dev/null 2>&1 || die "docker.service started but does not answer; see journalctl -u docker"
        return
    fi
    say "starting dockerd (log: $log)"
    # Its own session, so that it outlives this script and the terminal.
    setsid dockerd > "$log" 2>&1 < /dev/null &
    pid=$!
    for _ in {1..300}; do
        docker info > /dev/null 2>&1 && return
        kill -0 "$pid" 2> /dev/null || die "dockerd ended at once: $(tail -n 1 "$log")"
        sleep 0.1
    done
    die "dockerd has not answered for 30 s: $(tail -n 1 "$log")"
}
