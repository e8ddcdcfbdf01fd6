# shellcheck shell=bash
# The cluster's image, in layers, each tagged by a hash of what went into it: a layer whose inputs
# have not changed is not built again. Needs docker.sh.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
image_dir=tests/cluster/image
# The Debian release that the image is made of, whose Slurm is the one that is tried.
debian_release=${ONES_CLUSTER_DEBIAN:-trixie}
debian_image=ones-slurm-debian:$debian_release

# context PATH...: a tar archive of the working tree's files under these paths (those that git does
# not ignore), the same bytes whenever their contents are the same.
context() {
    (
        cd "$repository" || exit
        git ls-files -z --cached --others --exclude-standard -- "$@" |
            while IFS= read -r -d '' file; do [[ ! -e $file ]] || printf '%s\0' "$file"; done |
            sort -zu |
            tar --create --null --no-recursion --files-from=- --mtime=@0 --owner=0 --group=0 \
                --numeric-owner --mode='u+rw,go=rX'
    )
}

base_inputs() {
    context "$image_dir"/{base.Dockerfile,base-packages,install-packages,make-accounts,accounts,lib.sh} \
        "$image_dir"/etc/{slurmdbd.conf,mariadb.cnf}
}
recipes_inputs() { context "$image_dir"/recipes.Dockerfile "$image_dir"/recipes-packages; }
sharded_inputs() { context "$image_dir"/sharded.Dockerfile "$image_dir"/sharded-packages; }
package_inputs() { context scripts/lib/package.Dockerfile "$image_dir/install-packages" debian/control; }
bookworm_inputs() { context tests/install slurm_ext "$image_dir/install-packages"; }
rpm_inputs() { context scripts/lib/rpm.Dockerfile; }
site_inputs() {
    context tests/install tests/emulation tests/cluster/jobs/{counting,counted_digits,steered_onesd}.py \
        "$image_dir"/{install-packages,etc}
}
pyslurm_inputs() { context "$image_dir/pyslurm.Dockerfile" slurm_ext/pyslurm_build; }
slurm_inputs() {
    context setup.cfg pyproject.toml LICENSE __init__.py scripts/runtime policies estimator slurm_ext daemon tests/emulation \
        "$image_dir"/{slurm.Dockerfile,install-ones,entry,lib.sh,serve-page,ones.toml} \
        "$image_dir"/etc/{slurm,gres,topology,cgroup}.conf
}

all_inputs() { context docs/examples "$image_dir"/{all.Dockerfile,welcome}; }

# pack LAYER [PARENT]: keeps the layer's inputs as they are now, whatever is edited meanwhile, and
# prints the image's name, with a hash of these inputs and of the parent's name.
pack() {
    local hash
    "$1_inputs" > "$scratch/$1.tar"
    hash=$({
        cat "$scratch/$1.tar"
        echo "${2:-}"
    } | sha256sum)
    case $1 in
    slurm) echo "ones-slurm:${hash:0:16}" ;;
    *) echo "ones-slurm-$1:${hash:0:16}" ;;
    esac
}

image_exists() { docker image inspect "$1" > /dev/null 2>&1; }

# debian_sources: the release's package sources, on the mirrors from which this host's apt gets Debian;
# nothing when the host does not say.
debian_sources() {
    command -v apt-get > /dev/null || return 0
    # shellcheck disable=SC2016 # apt expands these
    apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Origin: Debian' 'Created-By: Packages' | sort -u |
        while read -r label uri; do
            case $label in
            Debian) printf 'deb %s %s main\n' "$uri" "$debian_release" "$uri" "$debian_release-updates" ;;
            Debian-Security) echo "deb $uri $debian_release-security main" ;;
            esac
        done
}

# apt_settings: those of this host's apt with which it reaches its mirrors; a mirror that stands still
# needs Check-Valid-Until.
apt_settings() {
    command -v apt-config > /dev/null || return 0
    apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries|ForceIPv)' || true
}

# ensure_debian [RELEASE]: a bare Debian image of the release, pulled where a registry answers, else
# made from packages; layers that are built after it are of that release.
ensure_debian() {
    local sources=()
    debian_release=${1:-$debian_release}
    debian_image=ones-slurm-debian:$debian_release
    ! image_exists "$debian_image" || return 0
    if timeout 10 docker pull --quiet "debian:$debian_release-slim" > /dev/null 2>&1; then
        docker tag "debian:$debian_release-slim" "$debian_image"
        return
    fi
    if ! command -v mmdebstrap > /dev/null; then
        on_debian_as_root || die "no image registry answers and mmdebstrap is not installed; install mmdebstrap"
        say "no image registry answers: installing mmdebstrap with apt-get"
        apt_install mmdebstrap debian-archive-keyring
    fi
    say "no image registry answers: making the image of Debian $debian_release with mmdebstrap"
    debian_sources > "$scratch/sources.list"
    [[ ! -s $scratch/sources.list ]] || sources=("$scratch/sources.list")
    apt_settings > "$scratch/apt.conf"
    # First to a file: of a mmdebstrap that failed, docker would import an empty image.
    mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io --aptopt="$scratch/apt.conf" \
        --include=ca-certificates "$debian_release" "$scratch/debian.tar" "${sources[@]}" 2> "$scratch/log" ||
        die "mmdebstrap failed: $(grep '^E:' "$scratch/log" | head -n 1)"
    docker import "$scratch/debian.tar" "$debian_image" > /dev/null
    rm "$scratch/debian.tar"
}

# host_settings DIRECTORY: the certificates, apt and pip settings with which this host reaches its mirrors.
host_settings() {
    local certificates=${PIP_CERT:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}} file
    mkdir -p "$1"
    debian_sources > "$1/sources.list"
    [[ ! -r $certificates ]] || cp "$certificates" "$1/certificates.pem"
    apt_settings > "$1/apt.conf"
    {
        echo '[global]'
        [[ ! -e $1/certificates.pem ]] || echo 'cert = /etc/ones-build/certificates.pem'
        for file in /etc/pip.conf ~/.config/pip/pip.conf ~/.pip/pip.conf; do
            # Only the network's part: the image has none of the host's folders.
            [[ ! -r $file ]] || grep -E '^(index-url|extra-index-url|trusted-host|proxy) *=' "$file" || true
        done | grep -v file: || true
        [[ -z ${PIP_INDEX_URL:-} ]] || echo "index-url = $PIP_INDEX_URL"
        [[ -z ${PIP_TRUSTED_HOST:-} ]] || echo "trusted-host = $PIP_TRUSTED_HOST"
    } > "$1/pip.conf"
}

# build_layer LAYER TAG BUILD-ARG...: unless the tagged image is there.
build_layer() {
    local layer=$1 tag=$2 started=$SECONDS folder=$scratch/$1 argument arguments=()
    shift 2
    ! image_exists "$tag" || return 0
    mkdir "$folder"
    tar --extract --file "$scratch/$layer.tar" --directory "$folder"
    # Later layers find them in the one on bare Debian.
    [[ " $* " != *" DEBIAN="* ]] || host_settings "$folder/host"
    for argument; do arguments+=(--build-arg "$argument"); done
    for argument in http_proxy https_proxy no_proxy; do
        [[ -z ${!argument:-} ]] || arguments+=(--build-arg "$argument")
    done
    say "building $tag"
    # The network is the host's: package mirrors may be reachable only as the host reaches them.
    if ! docker build --network host --force-rm --file "$(find "$folder" -name "$layer.Dockerfile")" --tag "$tag" \
        "${arguments[@]}" "$folder" > "$scratch/log" 2>&1; then
        tail -n 40 "$scratch/log" >&2
        die "the image layer '$layer' did not build"
    fi
    say "built $tag in $((SECONDS - started)) s"
}

# build_image: sets $image to the name of an image of the working tree as it is now; with
# ONES_CLUSTER_ALL=1 of a cluster of one host.
build_image() {
    local base pyslurm recipes sharded hosts scratch lock
    # One build at a time on this host: a second caller finds the layers that the first one made.
    exec {lock}> "${TMPDIR:-/tmp}/ones-cluster-image.lock"
    flock "$lock"
    scratch=$(mktemp -d)
    # shellcheck disable=SC2064 # expanded now, as $scratch is gone by the time the shell exits
    trap "rm -rf '$scratch'" EXIT
    base=$(pack base "$debian_image")
    if ! image_exists "$base"; then
        ensure_debian
        build_layer base "$base" "DEBIAN=$debian_image"
    fi
    if [[ ${ONES_CLUSTER_PYSLURM:-0} == 1 && -x $repository/slurm_ext/pyslurm_build/build ]]; then
        pyslurm=$(pack pyslurm "$base")
        build_layer pyslurm "$pyslurm" "BASE=$base"
        base=$pyslurm
    fi
    if [[ ${ONES_CLUSTER_RECIPES:-0} == 1 ]]; then
        recipes=$(pack recipes "$base")
        build_layer recipes "$recipes" "BASE=$base"
        base=$recipes
    fi
    if [[ ${ONES_CLUSTER_SHARDED:-0} == 1 ]]; then
        sharded=$(pack sharded "$base")
        build_layer sharded "$sharded" "BASE=$base"
        base=$sharded
    fi
    image=$(pack slurm "$base")
    build_layer slurm "$image" "BASE=$base"
    # The name that compose.yaml uses.
    docker tag "$image" ones-slurm:latest
    if [[ ${ONES_CLUSTER_ALL:-0} == 1 ]]; then
        hosts=$image
        image=$(pack all "$hosts")
        build_layer all "$image" "BASE=$hosts"
    fi
    exec {lock}>&-
}
