# shellcheck shell=bash
# The host's Python environment for developers and tests. Needs docker.sh for its messages.

environment=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/.venv

# ensure_python [EXTRA]: an up-to-date environment with the working tree installed in it, with what
# that extra of setup.cfg asks for (test). `environment` says where it is.
ensure_python() {
    local extra=${1:-test} python wanted stamp=$environment/installed
    python=$(find_python) || {
        on_debian_as_root || die "Python 3.11 or newer with venv is needed; install python3 and python3-venv"
        say "installing python3 and python3-venv with apt-get"
        apt_install python3 python3-venv
        python=$(find_python) || die "Debian's python3 is older than 3.11; use Debian 12 or newer"
    }
    wanted=$(sha256sum setup.cfg pyproject.toml)
    if [[ ! -e $stamp ]] || [[ $(< "$stamp") != "$wanted" ]]; then
        say "setting up $environment"
        "$python" -m venv "$environment"
        "$environment/bin/pip" install --quiet --disable-pip-version-check --editable ".[$extra]"
        echo "$wanted" > "$stamp"
    fi
}

# ensure_torch: the same beside it, with the newest PyTorch, whose FSDP2 works over gloo: half a gigabyte on the index.
ensure_torch() {
    environment=$environment-torch
    ensure_python torch
}

# run_torch WORDS...: become that environment's Python, or that of TORCH_PYTHON, which is there already.
run_torch() {
    local python=${TORCH_PYTHON:-}
    if [[ -z $python ]]; then
        ensure_torch
        python=$environment/bin/python
    fi
    export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
    exec "$python" "$@"
}

# find_python: the first interpreter that is new enough and can make environments.
find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# ensure_browser: Chromium and its driver, where this machine may install them.
ensure_browser() {
    command -v chromium > /dev/null && command -v chromedriver > /dev/null && return
    ! on_debian_as_root || {
        say "installing chromium and chromium-driver with apt-get"
        apt_install chromium chromium-driver
    }
}

# check_types: mypy sees the rooms under the names that they are installed by.
check_types() {
    local tree=build/types/ones room
    mkdir -p "$tree"
    for room in __init__.py policies estimator slurm_ext daemon; do
        ln -sfn "../../../$room" "$tree/$room"
    done
    (cd build/types && MYPYPATH=. "$environment/bin/mypy" --config-file ../../setup.cfg \
        --namespace-packages --explicit-package-bases -m ones -p ones.policies -p ones.estimator \
        -p ones.slurm_ext -p ones.daemon)
}
