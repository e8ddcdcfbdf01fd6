# shellcheck shell=bash
# TypeScript's compiler, which checks the types of the page's modules and builds nothing. Needs
# docker.sh for its messages.

# ensure_typescript: tsc, where this machine may install it.
ensure_typescript() {
    command -v tsc > /dev/null && return
    ! on_debian_as_root || {
        say "installing node-typescript with apt-get"
        apt_install node-typescript
    }
}

# check_modules: the types that the comments of daemon/web/static/*.js tell. Left out where there is
# no tsc, but in CI.
check_modules() {
    if command -v tsc > /dev/null; then
        tsc --project daemon/web
    elif [[ -n ${CI:-} ]]; then
        die "CI must have tsc; apt-get install node-typescript"
    else
        say "no tsc, so the types of the page's modules are NOT checked; apt-get install node-typescript"
    fi
}
