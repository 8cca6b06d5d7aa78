# Sourced by scripts/test and scripts/demo: a virtual environment with this package in it.

python=${PYTHON:-python3}

fail() {
	echo "$0: $*" >&2
	exit 1
}

# need_packages [c++]: a Python that can make environments and compile extensions, and compilers.
need_packages() {
	command -v "$python" >/dev/null || fail "there is no $python: install Python 3.10 or newer, or set PYTHON"
	"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
		fail "$python is $("$python" -V 2>&1): Python 3.10 or newer is needed; set PYTHON to one"
	[ "${1:-}" != c++ ] || need_beds

	local version missing=()
	version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	"$python" -c 'import venv, ensurepip' 2>/dev/null || missing+=("python$version-venv")
	[ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
		missing+=("python$version-dev")
	command -v "${CC:-cc}" >/dev/null || missing+=(gcc libc6-dev)
	if [ "${1:-}" = c++ ]; then
		[ -e /usr/include/infiniband/verbs.h ] || missing+=(libibverbs-dev) # for tests/verbs_sim
		command -v "${CXX:-c++}" >/dev/null || missing+=(g++)
	fi
	[ ${#missing[@]} -gt 0 ] || return 0

	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		echo "installing ${missing[*]}" >&2
		apt-get update -qq
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
	else
		fail "missing, by their Debian names: ${missing[*]}; install them, as in: sudo apt-get install ${missing[*]}"
	fi
}

# need_beds: what scripts/hosts and scripts/softroce need, and the tests that use them. Where it cannot be
# had those tests say so and are skipped, except in CI.
need_beds() {
	PYTHONPATH=scripts "$python" -m beds.install || [ "${CI:-}" != true ] || fail "CI skips no test bed"
}

# sources_hash: of everything that an installation depends on.
sources_hash() {
	find pyproject.toml README.md LICENSE native rdmaring -type f \
		-not -name '*.pyc' -not -name '*.so' -not -path 'rdmaring/include/*' -print0 |
		sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
}

# install_into VENV EXTRA [pip options]: only when the sources have changed since the last time.
install_into() {
	local venv=$1 extra=$2 stamp
	shift 2
	stamp=$(sources_hash)
	[ "$(cat "$venv/installed-$extra" 2>/dev/null)" = "$stamp" ] && return 0
	[ -x "$venv/bin/pip" ] || "$python" -m venv --clear "$venv"
	echo "installing rdmaring[$extra] into $venv" >&2
	"$venv/bin/pip" install -q --disable-pip-version-check "$@" ".[$extra]"
	echo "$stamp" >"$venv/installed-$extra"
}
