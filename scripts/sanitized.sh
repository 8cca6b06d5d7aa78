# Sourced by scripts/test: the Python tests on a package whose libraries are made for a sanitizer.

# What CI runs of them, about a minute of one processor each: worlds that touch most of the C, and those with threads.
sanitized_slice=()
threaded_slice=()
# All that has threads of this library's or of its caller's.
threaded=(tests/collectives tests/fault tests/far tests/transport tests/recover)

# native_build SANITIZER TARGET...: the C tests and the package's libraries are of the same objects.
native_build() {
	local sanitizer=$1
	shift
	cmake -S native -B "$cache/native-$sanitizer" -G Ninja -DRDMARING_TESTS=ON -DRDMARING_EXTENSION=ON -DRDMARING_WERROR=ON \
		-DRDMARING_SANITIZE="$sanitizer" -DPython_EXECUTABLE="$PWD/$cache/venv/bin/python" >"$cache/native-$sanitizer.log"
	cmake --build "$cache/native-$sanitizer" --target "$@"
}

# sanitized_package SANITIZER: a folder for PYTHONPATH, which goes before the installed package.
sanitized_package() {
	local folder=$cache/package-$1
	native_build "$1" rdmaring_extension
	rm -rf "$folder"
	cmake --install "$cache/native-$1" --prefix "$folder" >/dev/null
	cp -r rdmaring/. "$folder/rdmaring/"
	grep -q "__$2_init" "$folder/rdmaring/lib/librdmaring.so" || fail "$folder is not made for the sanitizer: $1"
}

# sanitized address|thread PYTEST-ARGUMENTS...: what a sanitizer finds ends the process by SIGABRT, and so fails the test.
sanitized() {
	local sanitizer=$1 short=asan before=() left_out=() line
	shift
	if [ "$sanitizer" = thread ]; then
		short=tsan
		# As the C tests: gcc's thread sanitizer before 14 needs addresses that are not randomised.
		! setarch -R true 2>/dev/null || before=(setarch -R)
	fi
	while read -r line; do
		line=${line%%#*}
		[ -z "${line// /}" ] || left_out+=(--deselect "${line// /}")
	done <tests/unsanitized.txt
	sanitized_package "$sanitizer" "$short"
	# Python's own leaks are not ours; a shim of a test may come before the sanitizer's library; the children of forks go on.
	env PYTHONPATH="$PWD/$cache/package-$sanitizer" PYTHONMALLOC=malloc RDMARING_SANITIZED="$sanitizer" \
		LD_PRELOAD="$("${CC:-cc}" -print-file-name="lib$short.so")" \
		ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:handle_abort=0:verify_asan_link_order=0 \
		UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:abort_on_error=1 \
		TSAN_OPTIONS=halt_on_error=1:abort_on_error=1:handle_abort=0:ignore_noninstrumented_modules=1:die_after_fork=0 \
		"${before[@]}" "$cache/venv/bin/pytest" -o timeout=400 -o cache_dir=".cache/pytest-$sanitizer" "${left_out[@]}" "$@"
}
