#!/usr/bin/env bash
# Makes .venv hold exactly what requirements.lock says, plus this package, and checks that Java 17+ is there.
# Safe to run any number of times: when nothing changed it only compares two stamps. Exit status: 0 ready,
# 1 the installation failed, 3 something is missing that this script may not install itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv
readonly STAMP=$VENV/.stamp            # written last: without it .venv counts as half made
readonly JAVA_STAMP=$VENV/.java-stamp  # the java that was last found to be new enough
readonly LOG=$VENV/setup.log
readonly PYTHON_MINOR_MIN=11           # PySpark 4.3 runs on Python 3.11 and later
readonly JAVA_MIN=17

# Traps may run while stderr goes to the log; messages always go to where the user looks.
exec 8>&2
say() { printf 'setup: %s\n' "$*" >&8; }

# ---- what should be, and what is ------------------------------------------------------------------------

# The folder belongs to it: a .venv that moved has wrong paths inside. So does the jar, whose classes are recorded.
wanted() { { pwd -P; cat requirements.lock pyproject.toml src/understudy/jvm/understudy.jar; } | cksum_of; }
cksum_of() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1; }

venv_is_current() { [[ -x $VENV/bin/python && -f $STAMP && $(<"$STAMP") == "$WANTED" ]]; }

# The java that PySpark will start: JAVA_HOME wins over PATH.
java_path() {
    if [[ -n ${JAVA_HOME:-} ]]; then printf '%s\n' "$JAVA_HOME/bin/java"; else command -v java || true; fi
}
java_is_known_good() {
    local java; java=$(java_path)
    [[ -n $java && -x $java && -f $JAVA_STAMP && $(<"$JAVA_STAMP") == "$java" ]]
}
# Major version: `version "17.0.15"` is 17, `version "1.8.0_402"` is 1 (old enough to be refused all the same).
java_major() { "$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1; }
java_is_good() {
    local java major; java=$(java_path)
    [[ -n $java && -x $java ]] || return 1
    major=$(java_major "$java" || true)
    [[ -n $major && $major -ge $JAVA_MIN ]]
}

WANTED=$(wanted)
if venv_is_current && java_is_known_good; then exit 0; fi

# ---- one at a time --------------------------------------------------------------------------------------

exec 9<requirements.lock
if command -v flock >/dev/null && ! flock --nonblock 9; then
    say "another setup is running here; waiting for it"
    flock 9
    WANTED=$(wanted)
fi

TICKER=
stop_ticker() {
    if [[ -z $TICKER ]]; then return; fi
    kill "$TICKER" 2>/dev/null || true
    wait "$TICKER" 2>/dev/null || true
    TICKER=
}
trap stop_ticker EXIT
trap 'say "interrupted; run it again and it starts over"; exit 130' INT
trap 'exit 143' TERM

# step TITLE COMMAND...: run it quietly, say what and how long; on failure show the end of the log.
step() {
    local title=$1 start=$SECONDS; shift
    say "$title"
    # The sleep outlives the ticker by up to 20 s: it must hold neither our output nor the lock open.
    ( trap - EXIT INT TERM
      while sleep 20 >/dev/null 2>&1 8>&- 9<&-; do say "  ... still at it, $((SECONDS - start)) s"; done ) 9<&- &
    TICKER=$!
    local status=0
    "$@" >>"$STEP_LOG" 2>&1 || status=$?
    stop_ticker
    # A child ended by Ctrl-C may report it only through its status.
    if [[ $status -eq 130 ]]; then say "interrupted; run it again and it starts over"; exit 130; fi
    if [[ $status -ne 0 ]]; then
        tail -n 25 "$STEP_LOG" >&8 || true
        say "failed after $((SECONDS - start)) s: $*"
        return 1
    fi
    say "  done in $((SECONDS - start)) s"
}

# ---- Debian packages ------------------------------------------------------------------------------------

# Sets ROOT to what must stand before a command to run it as root; false if that is not possible.
ROOT=()
can_apt() {
    command -v apt-get >/dev/null || return 1
    if [[ $(id -u) -eq 0 ]]; then ROOT=(); return 0; fi
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then ROOT=(sudo -n); return 0; fi
    return 1
}
# apt_install PACKAGE...: the first of them that this release of Debian or Ubuntu has.
apt_install() {
    local package
    ${ROOT[@]+"${ROOT[@]}"} apt-get update || return 1
    # Slim images lack it, and then Java's own installation script fails.
    ${ROOT[@]+"${ROOT[@]}"} mkdir -p /usr/share/man/man1
    for package in "$@"; do
        if [[ -n $(apt-cache madison "$package" 2>/dev/null) ]]; then
            # --no-upgrade: what the machine has already is not ours to change, e.g. a Java that is not on PATH.
            ${ROOT[@]+"${ROOT[@]}"} env DEBIAN_FRONTEND=noninteractive \
                apt-get install -y --no-install-recommends --no-upgrade "$package"
            return
        fi
    done
    echo "none of these packages is available: $*"
    return 1
}

# ---- Java -----------------------------------------------------------------------------------------------

java_remedy() {
    say "Spark needs Java $JAVA_MIN or newer, and $1."
    say "Remedy: install one, e.g."
    say "    Debian, Ubuntu:  apt-get install openjdk-17-jre-headless   (as root; or 21)"
    say "    Fedora, RHEL:    dnf install java-21-openjdk-headless      (as root)"
    say "    macOS:           brew install openjdk@17"
    say "and put its java first on PATH, or set JAVA_HOME to its folder. Then run this again."
    exit 3
}

ensure_java() {
    if java_is_good; then return; fi
    if [[ -n ${JAVA_HOME:-} ]]; then
        # Installing another would not help: PySpark would still start this one.
        java_remedy "JAVA_HOME=$JAVA_HOME has none (unset it to use the java on PATH)"
    fi
    local found="none was found"
    if [[ -n $(java_path) ]]; then found="$(java_path) is older"; fi
    can_apt || java_remedy "$found"
    step "installing Java 17 with apt-get (about a minute)" \
        apt_install openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless || java_remedy "$found"
    hash -r
    java_is_good || java_remedy "the java on PATH is still not it after installing one"
}

# ---- Python ---------------------------------------------------------------------------------------------

python_is_good() { "$1" -c "import sys; sys.exit(sys.version_info < (3, $PYTHON_MINOR_MIN))" 2>/dev/null; }

find_python() {
    local candidate
    if [[ -n ${PYTHON:-} ]]; then
        if python_is_good "$PYTHON"; then printf '%s\n' "$PYTHON"; return; fi
        say "PYTHON=$PYTHON is not a Python 3.$PYTHON_MINOR_MIN or newer; name another one, or unset it"
        return 1
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.14 python; do
        if command -v "$candidate" >/dev/null && python_is_good "$candidate"; then
            printf '%s\n' "$candidate"; return
        fi
    done
    say "no Python 3.$PYTHON_MINOR_MIN or newer on PATH (found: $(python3 --version 2>/dev/null || echo none))."
    say "Remedy: install one (apt-get install python3.11 python3.11-venv, brew install python@3.11, pyenv install"
    say "3.11), or name one that PATH does not show: PYTHON=/path/to/python3.11 tools/setup.sh"
    return 1
}

# Debian splits venv (that is, ensurepip) from Python.
ensure_venv_module() {
    local python=$1 version
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then return; fi
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if can_apt; then
        step "installing python$version-venv with apt-get" apt_install "python$version-venv" python3-venv || true
        if "$python" -c 'import ensurepip, venv' 2>/dev/null; then return; fi
    fi
    say "$python has no venv module. Remedy: apt-get install python$version-venv (as root), then run this again."
    exit 3
}

# The package list, hashes checked, then this package itself, built with the setuptools of the list.
# --use-pep517: PySpark comes as source, and pip keeps the built wheel in its cache only this way.
# --no-deps: the list is whole. Resolving again, pip takes an extra of a pinned package (coverage[toml]) for another,
# unpinned one as soon as there is a newer release of it, and refuses.
# PIP_USER=0: a user's own pip settings must not send packages out of .venv.
install_locked() {
    PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 "$VENV/bin/python" -m pip install --quiet --no-input \
        --use-pep517 --no-deps --require-hashes -r requirements.lock
}
install_self() {
    PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 "$VENV/bin/python" -m pip install --quiet --no-input \
        --no-deps --no-build-isolation -e .
}

ensure_venv() {
    if venv_is_current; then return; fi
    local python
    if [[ -x $VENV/bin/python && -f $STAMP && -f $VENV/.root && $(<"$VENV/.root") == "$(pwd -P)" ]]; then
        say "what is to be installed has changed; updating $VENV"
        rm -f "$STAMP"
    else
        python=$(find_python) || exit 3
        ensure_venv_module "$python"
        step "creating $VENV with $("$python" --version)" "$python" -m venv --clear "$VENV" || exit 1
        pwd -P >"$VENV/.root"
    fi
    STEP_LOG=$LOG
    : >"$LOG"
    step "installing the pinned packages (PySpark alone is over 400 MB; a minute or a few)" install_locked || exit 1
    step "installing understudy itself, editable" install_self || exit 1
    # Not a must: without it hosts only take longer to start.
    step "recording the classes that Spark loads, so that hosts start in half the time (a minute)" \
        "$VENV/bin/understudy" prepare || true
    # Renamed into place, so that it is there whole or not at all.
    printf '%s\n' "$WANTED" >"$STAMP.new"
    mv "$STAMP.new" "$STAMP"
}

STEP_LOG=$(mktemp "${TMPDIR:-/tmp}/understudy-setup.XXXXXX")
FIRST_LOG=$STEP_LOG
trap 'stop_ticker; rm -f "$FIRST_LOG"' EXIT

ensure_java
ensure_venv
java_path >"$JAVA_STAMP"
say "ready: $("$VENV/bin/python" --version), Java $(java_major "$(java_path)"), ${SECONDS} s in all"
