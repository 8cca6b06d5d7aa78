# The harnesses of ../tests/fuzz/harness: under `fuzzer` (clang) with libFuzzer, which searches; under `address` with
# replay.c, which runs the kept inputs: each crash that was found is one of them.
set(fuzz_folder "${CMAKE_CURRENT_SOURCE_DIR}/../tests/fuzz")
file(GLOB fuzz_sources CONFIGURE_DEPENDS "${fuzz_folder}/harness/fuzz_*.c")

add_custom_target(fuzzers)
foreach(source IN LISTS fuzz_sources)
	get_filename_component(name "${source}" NAME_WE)
	string(REPLACE "fuzz_" "" corpus "${name}")
	add_executable(${name} "${source}")
	target_link_libraries(${name} PRIVATE rdmaring_tested)
	add_dependencies(fuzzers ${name})
	if(RDMARING_SANITIZE STREQUAL "fuzzer")
		target_link_options(${name} PRIVATE -fsanitize=fuzzer)
	else()
		target_sources(${name} PRIVATE "${fuzz_folder}/harness/replay.c" "${fuzz_folder}/harness/mutate.c")
		add_dependencies(native_tests ${name})
		add_test(NAME ${name} COMMAND $<TARGET_FILE:${name}> "${fuzz_folder}/corpus/${corpus}")
		set_tests_properties(${name} PROPERTIES TIMEOUT 120 ENVIRONMENT
			"ASAN_OPTIONS=detect_stack_use_after_return=1;UBSAN_OPTIONS=print_stacktrace=1")
	endif()
endforeach()
